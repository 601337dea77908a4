// SPDX-License-Identifier: MIT OR Apache-2.0
//! A swap device's object, `/org/sluice/Sluice1/device/nbd0`.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use zbus::zvariant::Value;
use zbus::{Connection, interface};

use super::PATH;
use super::manager::{Shared, announce, read};
use crate::engine::view;

pub(super) const INTERFACE: &str = "org.sluice.Sluice1.Device";

struct Device {
    shared: Shared<view::Device>,
}

/// A block device that the store gave the kernel.
#[interface(name = "org.sluice.Sluice1.Device")]
impl Device {
    /// Its node, "/dev/nbd0".
    #[zbus(property(emits_changed_signal = "const"))]
    fn path(&self) -> String {
        read(&self.shared).path
    }

    /// Its size in bytes.
    #[zbus(property)]
    fn size_bytes(&self) -> u64 {
        read(&self.shared).size_bytes
    }

    /// Whether it is switched on as swap.
    #[zbus(property)]
    fn swapped_on(&self) -> bool {
        read(&self.shared).swap_priority.is_some()
    }

    /// Its swap priority; -1 also while it is not switched on.
    #[zbus(property)]
    fn swap_priority(&self) -> i32 {
        read(&self.shared).swap_priority.unwrap_or(-1)
    }

    /// Bytes that the kernel counts as in use.
    #[zbus(property)]
    fn swap_used_bytes(&self) -> u64 {
        read(&self.shared).swap_used_bytes
    }
}

fn values(device: &view::Device) -> [(&'static str, Value<'static>); 4] {
    [
        ("SizeBytes", device.size_bytes.into()),
        ("SwappedOn", device.swap_priority.is_some().into()),
        ("SwapPriority", device.swap_priority.unwrap_or(-1).into()),
        ("SwapUsedBytes", device.swap_used_bytes.into()),
    ]
}

/// The objects of the devices there are.
#[derive(Default)]
pub struct Devices {
    shown: BTreeMap<String, Shared<view::Device>>,
}

impl Devices {
    /// Shows these devices and no others, and announces what is different.
    pub async fn publish(
        &mut self,
        connection: &Connection,
        devices: &[view::Device],
    ) -> zbus::Result<()> {
        let is_gone = |path: &String| !devices.iter().any(|device| device.path == *path);
        let gone: Vec<String> = self.shown.keys().filter(|path| is_gone(path)).cloned().collect();
        for path in gone {
            self.shown.remove(&path);
            connection.object_server().remove::<Device, _>(object(&path)).await?;
        }
        for device in devices {
            let path = object(&device.path);
            if let Some(shared) = self.shown.get(&device.path) {
                let before = {
                    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    std::mem::replace(&mut *shared, device.clone())
                };
                announce(connection, &path, INTERFACE, values(&before), values(device)).await?;
            } else {
                let shared = Shared::new(device.clone().into());
                let shown = Device { shared: Shared::clone(&shared) };
                connection.object_server().at(path, shown).await?;
                self.shown.insert(device.path.clone(), shared);
            }
        }
        Ok(())
    }
}

/// The object of a device. In a path, what is no letter or digit is `_`.
fn object(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("{PATH}/device/{name}")
}

/// The interface's description, as clients are given it.
#[must_use]
pub fn introspection() -> String {
    use zbus::object_server::Interface;
    let device = view::Device {
        path: String::new(),
        size_bytes: 0,
        swap_priority: None,
        swap_used_bytes: 0,
    };
    let mut text = String::new();
    Device { shared: Shared::new(device.into()) }.introspect_to_writer(&mut text, 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_after_its_device() {
        assert_eq!(object("/dev/nbd0"), "/org/sluice/Sluice1/device/nbd0");
        assert_eq!(object("/dev/mapper/a-b"), "/org/sluice/Sluice1/device/mapper_a_b");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store tells the next one about itself, as one JSON text in memory.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::engine::gpu::GpuSelector;
use crate::engine::orders::{Orders, Targets};
use crate::engine::units::ByteLen;
use crate::host::shared_memory;

/// The version of the text; one that is larger is not read.
const VERSION: u32 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    version: u32,
    /// The configuration in force, as it was written. It stays in force until
    /// the store has been stopped: sizes and tiers cannot change under pages.
    pub config: String,
    /// How far the store was.
    pub phase: Phase,
    /// What the keeper was told since the start; `None`: nothing.
    #[serde(default)]
    order: Option<Order>,
    /// What names the GPU of each fast tier; `None`: nothing does.
    #[serde(default)]
    gpus: Vec<Option<String>>,
    /// The kernel's devices, in order.
    pub devices: Vec<Described>,
}

/// What the keeper was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    targets: Bytes,
    close: bool,
}

/// Targets, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Bytes {
    Total(u64),
    Each(Vec<u64>),
}

/// How far a store was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Not all devices were attached and switched on yet.
    Arming,
    /// All were.
    Serving,
    /// It was told to stop.
    Draining,
}

/// One device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Whom the kernel takes the device's server for.
    pub backend: String,
    /// Its number; `None`: it was not known yet.
    pub index: Option<u32>,
    /// Its size.
    pub size_bytes: u64,
}

impl Description {
    /// Of a store that begins.
    #[must_use]
    pub fn new(config: String) -> Self {
        let (phase, order) = (Phase::Arming, None);
        let (gpus, devices) = (Vec::new(), Vec::new());
        Self { version: VERSION, config, phase, order, gpus, devices }
    }

    /// Notes which GPU each fast tier is: numbers may change, and slabs are of
    /// one GPU. One that is not known now stays as it was noted before.
    pub fn set_gpus(&mut self, gpus: &[Option<GpuSelector>]) {
        self.gpus.resize(gpus.len(), None);
        for (noted, gpu) in self.gpus.iter_mut().zip(gpus) {
            *noted = gpu.map(|gpu| gpu.to_string()).or(noted.take());
        }
    }

    /// Which GPU each fast tier is, as far as it was noted.
    pub fn gpus(&self) -> Result<Vec<Option<GpuSelector>>> {
        let parse = |noted: &Option<String>| {
            noted.as_deref().map(str::parse).transpose().map_err(|valid| {
                anyhow::anyhow!("the store's description names a GPU {noted:?}: {valid}")
            })
        };
        self.gpus.iter().map(parse).collect()
    }

    /// Notes what the keeper is told; the reserve is the configuration's.
    pub fn set_orders(&mut self, orders: &Orders) {
        let targets = match &orders.targets {
            Targets::Total(bytes) => Bytes::Total(bytes.0),
            Targets::Each(each) => Bytes::Each(each.iter().map(|bytes| bytes.0).collect()),
        };
        self.order = Some(Order { targets, close: orders.close });
    }

    /// What the keeper was told since the start, if anything.
    #[must_use]
    pub fn orders(&self, reserve: ByteLen) -> Option<Orders> {
        let Order { targets, close } = self.order.as_ref()?;
        let targets = match targets {
            Bytes::Total(bytes) => Targets::Total(ByteLen(*bytes)),
            Bytes::Each(each) => Targets::Each(each.iter().map(|bytes| ByteLen(*bytes)).collect()),
        };
        Some(Orders { targets, reserve, close: *close })
    }

    /// The text in memory that outlives the process, and its length.
    pub fn write(&self) -> Result<(OwnedFd, u64)> {
        let text = serde_json::to_string(self)?;
        Ok((shared_memory::text("sluice-description", &text)?, text.len() as u64))
    }

    /// Reads what [`Description::write`] wrote.
    pub fn read(memory: &OwnedFd) -> Result<Self> {
        let text = shared_memory::read_text(memory)?;
        let said: Self =
            serde_json::from_str(&text).context("the store's description cannot be read")?;
        ensure!(
            said.version <= VERSION,
            "the store's description has version {}, this program reads up to {VERSION}",
            said.version
        );
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written_and_a_newer_one_is_refused() {
        let mut said = Description::new("[swap]\nsize = \"1G\"\n".to_owned());
        said.devices =
            vec![Described { backend: "sluice:0:1".into(), index: Some(3), size_bytes: 1 << 30 }];
        said.phase = Phase::Draining;
        let (memory, bytes) = said.write().unwrap();
        assert!(bytes > 50);
        assert_eq!(Description::read(&memory).unwrap(), said);
        let gpus = [None, Some(GpuSelector::Uuid([7; 16]))];
        said.set_gpus(&gpus);
        // One that is closed is not known, and stays what it was.
        said.set_gpus(&[None, None]);
        let read = Description::read(&said.write().unwrap().0).unwrap();
        assert_eq!(read.gpus().unwrap(), gpus);
        said.gpus[0] = Some("GPU-1".into());
        assert!(said.gpus().unwrap_err().to_string().contains("GPU-1"));
        said.version = VERSION + 1;
        let error = Description::read(&said.write().unwrap().0).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
    }

    #[test]
    fn orders_survive_and_a_text_without_them_has_none() {
        let reserve = ByteLen(5);
        let mut said = Description::new("[swap]".to_owned());
        assert_eq!(said.orders(reserve), None);
        for (targets, close) in [
            (Targets::Total(ByteLen(0)), true),
            (Targets::Each(vec![ByteLen(1 << 30), ByteLen(0)]), false),
        ] {
            let orders = Orders { targets, reserve, close };
            said.set_orders(&orders);
            let read = Description::read(&said.write().unwrap().0).unwrap();
            assert_eq!((read.orders(reserve), &read), (Some(orders), &said));
        }
        let old = r#"{"version":1,"config":"","phase":"serving","devices":[]}"#;
        assert_eq!(serde_json::from_str::<Description>(old).unwrap().orders(reserve), None);
    }
}

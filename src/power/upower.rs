// SPDX-License-Identifier: MIT OR Apache-2.0
//! `UPower` (`org.freedesktop.UPower`): whether the machine runs on battery, and
//! the level of all batteries together (its display device).

use zbus::Connection;
use zbus::zvariant::OwnedValue;

use crate::engine::arbiter::Power;

/// The service's name on the bus.
pub const SERVICE: &str = "org.freedesktop.UPower";
const PATH: &str = "/org/freedesktop/UPower";
const DISPLAY_DEVICE: &str = "/org/freedesktop/UPower/devices/DisplayDevice";
const DEVICE: &str = "org.freedesktop.UPower.Device";

/// Asks `UPower`. An error means that there is none, or that it does not answer.
pub async fn read(connection: &Connection) -> zbus::Result<Power> {
    let on_battery = bool::try_from(get(connection, PATH, SERVICE, "OnBattery").await?)?;
    Ok(Power { on_battery, level: level(connection).await? })
}

/// The battery's level; `None` where there is no battery.
async fn level(connection: &Connection) -> zbus::Result<Option<u8>> {
    let present = get(connection, DISPLAY_DEVICE, DEVICE, "IsPresent").await?;
    if !bool::try_from(present)? {
        return Ok(None);
    }
    let percent = f64::try_from(get(connection, DISPLAY_DEVICE, DEVICE, "Percentage").await?)?;
    Ok(whole_percent(percent))
}

async fn get(
    connection: &Connection,
    path: &str,
    interface: &str,
    property: &str,
) -> zbus::Result<OwnedValue> {
    connection
        .call_method(
            Some(SERVICE),
            path,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &(interface, property),
        )
        .await?
        .body()
        .deserialize()
}

/// Rounded down, so that a threshold holds as soon as it is passed.
fn whole_percent(percent: f64) -> Option<u8> {
    #[expect(clippy::cast_sign_loss, reason = "it is within 0 to 100")]
    (0.0..=100.0).contains(&percent).then(|| percent.floor() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_rounded_down_and_nonsense_is_none() {
        assert_eq!(whole_percent(40.9), Some(40));
        assert_eq!(whole_percent(100.0), Some(100));
        assert_eq!(whole_percent(-1.0), None);
        assert_eq!(whole_percent(f64::NAN), None);
    }
}

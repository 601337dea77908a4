// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that was opened, tried and measured, and what lanes get of it.

use std::sync::Arc;

use ash::vk;

use super::channel::Channel;
use super::copy::Copier;
use super::device::{Device, Place};
use super::gather::Gather;
use super::lane::{self, LaneCore};
use super::limits::{By, Limits};
use super::memory::DeviceMemory;
use super::trial::Trial;
use super::types::Over;
use crate::engine::error::{Kind, Result};

/// See the module. Undone in this order.
pub struct Opened {
    /// Who moves what.
    pub limits: Limits,
    /// Memory of the device for threads to try it with.
    scratch: Option<DeviceMemory>,
    gather: Option<Arc<Gather>>,
    /// The device.
    pub device: Arc<Device>,
}

impl Opened {
    /// Opens the device and sends pages through all ways that lead into it.
    ///
    /// A driver may let no buffer of the proper kind take memory that is both
    /// mapped and given out. Then an ordinary one is laid over it, which the
    /// interface does not promise to work; where it does not, the CPU alone moves
    /// what it reaches.
    pub fn new(place: &Place, copier: Copier, by: Option<By>) -> Result<Self> {
        let device = Device::open(place, true)?;
        let loose = device.types.mapped.is_some_and(|mapped| mapped.over == Over::Ordinary);
        match Self::tried(device, copier, by) {
            Err(error) if loose && error.kind() != Kind::NoSpace => {
                tracing::warn!("{error}; mapped memory is left to the CPU");
                Self::tried(Device::open(place, false)?, copier, by)
            }
            result => result,
        }
    }

    fn tried(device: Device, copier: Copier, by: Option<By>) -> Result<Self> {
        let device = Arc::new(device);
        let gather = Gather::new(&device)?.map(Arc::new);
        let mut made = Self { limits: Limits::only(By::Cpu), scratch: None, gather, device };
        let mut refused = None;
        let mut measured = by.map(Limits::only);
        for memory in made.device.types.in_order() {
            let mut trial = match Trial::new(&made.device, made.gather.as_ref(), copier, memory) {
                Ok(trial) => trial,
                // The other type may have room.
                Err(error) if error.kind() == Kind::NoSpace => {
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let tried = trial.check().and_then(|()| match measured {
                Some(limits) => Ok(limits),
                None => trial.measure(),
            });
            match tried {
                Ok(limits) => measured = Some(limits),
                Err(error) => {
                    if error.kind() == Kind::TimedOut {
                        // It may still write to what it was tried with.
                        std::mem::forget(trial);
                    }
                    return Err(error);
                }
            }
            made.scratch = trial.into_scratch().or(made.scratch);
        }
        match (measured, refused) {
            (Some(limits), _) if by.is_none() || made.scratch.is_some() => made.limits = limits,
            (_, Some(error)) => return Err(error),
            (limits, None) => made.limits = limits.unwrap_or(made.limits),
        }
        Ok(made)
    }

    fn scratch(&self) -> Option<vk::Buffer> {
        self.scratch.as_ref().map(DeviceMemory::buffer)
    }

    /// Gives a lane its channel, and runs it once.
    pub fn equip(&self, lane: &LaneCore) -> Result<()> {
        let memory = lane.memory();
        let (base, bytes) = (memory.base(), memory.bytes());
        let mut channel = Channel::new(&self.device, self.gather.as_ref(), base, bytes)?;
        if let Err(error) = channel.warm(self.scratch()) {
            if error.kind() == Kind::TimedOut {
                std::mem::forget(channel);
            }
            return Err(error);
        }
        lane.open(lane::Open { channel, limits: self.limits });
        Ok(())
    }

    /// Runs a lane's channel on the calling thread, which is the lane's, before its
    /// first operation, under the tier's lock.
    pub fn warm(&self, lane: &LaneCore) -> Result<()> {
        // SAFETY: as the caller's.
        match unsafe { lane.get() } {
            Some(lane) => lane.channel.warm(self.scratch()),
            None => Ok(()),
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that moves many pages in one go.

use std::sync::Arc;

use ash::vk;

use super::device::Device;
use super::loader::error;
use crate::engine::error::{Error, Kind, Result};

/// Pages that one run moves at most, as in the shader.
pub const PAGES: usize = 64;
/// Bytes of the table of one run: an entry is two addresses.
pub const TABLE_BYTES: usize = PAGES * 16;

/// The shader, compiled from `shader/gather.comp`; see `.ci/shader.sh`.
const CODE: &[u8] = include_bytes!("shader/gather.spv");

/// The program, ready to run. Undone when dropped.
#[derive(Debug)]
pub struct Gather {
    device: Arc<Device>,
    shader: vk::ShaderModule,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
}

impl Gather {
    /// `None`: the device runs no programs.
    pub fn new(device: &Arc<Device>) -> Result<Option<Self>> {
        if device.compute.is_none() {
            return Ok(None);
        }
        let failed =
            |code| error(code, format!("GPU {}: cannot make the copy program", device.facts()));
        let words: Vec<u32> = CODE
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        // From here on dropping undoes: null handles are destroyed for free.
        let mut made = Self {
            device: Arc::clone(device),
            shader: vk::ShaderModule::null(),
            layout: vk::PipelineLayout::null(),
            pipeline: vk::Pipeline::null(),
        };
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the code is valid for the interface's version, which was checked
        // when the device was opened; structures live during the calls.
        made.shader = unsafe { device.raw.create_shader_module(&info, None) }.map_err(failed)?;
        let constants = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(size_of::<u64>() as u32)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&constants);
        // SAFETY: as above.
        made.layout = unsafe { device.raw.create_pipeline_layout(&info, None) }.map_err(failed)?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(made.shader)
            .name(c"main");
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(made.layout)];
        let cache = vk::PipelineCache::null();
        // SAFETY: as above.
        let pipelines = unsafe { device.raw.create_compute_pipelines(cache, &info, None) }
            .map_err(|(_, code)| failed(code))?;
        made.pipeline = pipelines.first().copied().ok_or_else(|| {
            Error::new(Kind::Io, format!("GPU {}: no copy program", device.facts()))
        })?;
        Ok(Some(made))
    }

    /// Records a run over the table at `table`, an address of the device's.
    pub fn record(&self, commands: vk::CommandBuffer, table: u64) {
        let raw = &self.device.raw;
        let point = vk::PipelineBindPoint::COMPUTE;
        let stage = vk::ShaderStageFlags::COMPUTE;
        // SAFETY: all are of one device, and the buffer is being recorded.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, self.pipeline);
            raw.cmd_push_constants(commands, self.layout, stage, 0, &table.to_le_bytes());
            raw.cmd_dispatch(commands, PAGES as u32, 1, 1);
        }
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        // SAFETY: all are ours or null; whoever drops made sure that nothing runs.
        unsafe {
            self.device.raw.destroy_pipeline(self.pipeline, None);
            self.device.raw.destroy_pipeline_layout(self.layout, None);
            self.device.raw.destroy_shader_module(self.shader, None);
        }
    }
}

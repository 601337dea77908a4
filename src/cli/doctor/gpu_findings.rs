// SPDX-License-Identifier: MIT OR Apache-2.0
//! From facts about GPUs to findings. Pure, like its neighbour `findings`.

use super::facts::{Facts, Module, Vulkan};
use super::findings::{Finding, Need, Verdict};
use super::gpus::Gpu;
use crate::engine::gpu::Offer;
use crate::engine::units::ByteLen;

const NEEDS: &[Need] = &[Need::Gpu];

/// All about GPUs, in the order in which things are needed.
pub(super) fn conclude(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.gpus.iter().map(gpu).collect();
    findings.extend(facts.gpus.iter().filter_map(power));
    if facts.gpus.iter().any(Gpu::is_nvidia) {
        findings.push(driver(facts));
        findings.push(uvm(facts));
        findings.push(persistence(facts));
    }
    findings.push(access(facts));
    findings.extend(heaps(facts));
    findings
}

/// The window of a GPU without resizable BAR.
const SMALL_WINDOW: u64 = 256 << 20;

fn gpu(gpu: &Gpu) -> Finding {
    let vendor = gpu.vendor_name().unwrap_or("display controller");
    let driver = gpu.driver.as_deref().unwrap_or("no driver");
    let name =
        format!("{vendor} {:04x}:{:04x} at {} ({driver})", gpu.vendor, gpu.device, gpu.address);
    if gpu.vendor_name().is_none() {
        return Finding::new("gpu", Verdict::Note, format!("{name}: no memory to lend"));
    }
    if gpu.asleep {
        return Finding::new("gpu", Verdict::Note, format!("{name}: asleep, and left asleep"))
            .next("run again while something uses the GPU");
    }
    if gpu.driver.is_none() {
        return Finding::new("gpu", Verdict::Warning, format!("{name}: unusable"))
            .next("install and load the GPU's driver");
    }
    let window = gpu.window_bytes.unwrap_or(0);
    if window > SMALL_WINDOW {
        let text = format!("{name}: the CPU sees {} of it (resizable BAR is on)", ByteLen(window));
        return Finding::new("gpu", Verdict::Ok, text);
    }
    let text = format!(
        "{name}: the CPU sees only {} of it (resizable BAR is off), so the fast path is closed",
        ByteLen(window)
    );
    Finding::new("gpu", Verdict::Warning, text).next(if gpu.resizable {
        "the kernel can resize the window: switch on \"Above 4G Decoding\" and \"Resizable BAR\" \
         in the firmware"
    } else {
        "switch on \"Above 4G Decoding\" and \"Resizable BAR\" in the firmware, if it has them"
    })
}

/// Whether the kernel may put an idle GPU to sleep.
fn power(gpu: &Gpu) -> Option<Finding> {
    let fixed = gpu.vendor_name().is_some() && gpu.power_control.as_deref() == Some("on");
    fixed.then(|| {
        let text = format!("{} is kept awake (power/control = on)", gpu.address);
        Finding::new("gpu power", Verdict::Note, text).next(format!(
            "on a battery: echo auto > /sys/bus/pci/devices/{}/power/control",
            gpu.address
        ))
    })
}

fn driver(facts: &Facts) -> Finding {
    match &facts.nvidia.version {
        Some(version) => Finding::new("nvidia driver", Verdict::Ok, format!("{version} is loaded")),
        None => Finding::new("nvidia driver", Verdict::No, "the module nvidia is not loaded")
            .next("install NVIDIA's driver, the open kernel modules or the others, and load it")
            .needed_for(NEEDS),
    }
}

/// CUDA needs nvidia-uvm, which no device event loads.
fn uvm(facts: &Facts) -> Finding {
    // Vulkan starts without it.
    let finding = |text: &str, next: &str| match vulkan(facts) {
        None => Finding::new("nvidia-uvm", Verdict::No, text).next(next).needed_for(NEEDS),
        Some(_) => Finding::new("nvidia-uvm", Verdict::Warning, text).next(next),
    };
    match (facts.nvidia.uvm, facts.nvidia.has_uvm_node) {
        (Module::Loaded, true) => {
            Finding::new("nvidia-uvm", Verdict::Ok, "loaded, and /dev/nvidia-uvm is there")
        }
        (Module::Loaded, false) => finding(
            "loaded, but /dev/nvidia-uvm is missing",
            "nvidia-modprobe -u -c 0, or a udev rule that makes the node",
        ),
        (Module::Absent, _) => finding(
            "this kernel has no module nvidia-uvm",
            "install the driver's modules for the running kernel",
        ),
        _ => finding(
            "not loaded: CUDA does not start without it",
            "modprobe nvidia-uvm; name it in /etc/modules-load.d/ or boot.kernelModules for each start",
        ),
    }
}

fn persistence(facts: &Facts) -> Finding {
    if facts.nvidia.has_persistenced {
        return Finding::new(
            "persistence",
            Verdict::Note,
            "nvidia-persistenced keeps the GPU started: it never sleeps",
        )
        .next(
            "on a battery: systemctl disable --now nvidia-persistenced; Sluice does not need it",
        );
    }
    Finding::new("persistence", Verdict::Ok, "nobody keeps an idle GPU started")
}

/// By what the GPU's memory can be reached, if at all.
fn access(facts: &Facts) -> Finding {
    let no = |text: String, next: &str| {
        Finding::new("gpu access", Verdict::No, text).next(next).needed_for(NEEDS)
    };
    let usable = facts.gpus.iter().any(|gpu| gpu.vendor_name().is_some() && gpu.driver.is_some());
    if !usable {
        let text = if facts.gpus.is_empty() {
            "no GPU on the PCI bus"
        } else {
            "no GPU with memory and a driver"
        };
        return no(text.into(), "use the ram tier to try everything else");
    }
    if facts.gpu_nodes.is_empty() {
        return no(
            "a GPU and its driver, but no device node in /dev".into(),
            "nvidia-modprobe -c 0 -u for NVIDIA; otherwise look at udev",
        );
    }
    let nodes = facts.gpu_nodes.join(", ");
    let cuda = facts.libcuda.as_ref().filter(|_| facts.gpus.iter().any(Gpu::is_nvidia));
    let cuda = cuda.map(|path| format!("CUDA ({})", path.display()));
    let ways: Vec<String> = vulkan(facts).into_iter().chain(cuda).collect();
    if ways.is_empty() {
        return no(
            format!("{nodes}, but neither a Vulkan loader with a GPU's driver nor libcuda.so.1"),
            "install libvulkan1 and the Vulkan part of the GPU's driver; for NVIDIA libcuda1 will do",
        );
    }
    Finding::new("gpu access", Verdict::Ok, format!("{nodes} by {}", ways.join(" and by ")))
}

/// How Vulkan reaches a GPU, if it does: Mesa's software driver is no way to one.
fn vulkan(facts: &Facts) -> Option<String> {
    let drivers: Vec<&str> = facts
        .vulkan_drivers
        .iter()
        .map(String::as_str)
        .filter(|manifest| !manifest.starts_with("lvp_icd"))
        .collect();
    let loader = facts.vulkan_loader.as_ref().filter(|_| !drivers.is_empty())?;
    Some(format!("Vulkan ({}; {})", loader.display(), drivers.join(", ")))
}

/// How much of each GPU's memory its Vulkan driver offers, and how it is reached.
fn heaps(facts: &Facts) -> Vec<Finding> {
    const TOPIC: &str = "gpu memory";
    match &facts.vulkan {
        None => Vec::new(),
        Some(Vulkan::Fails(why)) => {
            let finding =
                Finding::new(TOPIC, Verdict::Note, format!("Vulkan does not start: {why}"));
            vec![finding.next("tier cuda works without it; for tier vulkan correct what it says")]
        }
        Some(Vulkan::Offers(offers)) => {
            offers.iter().filter(|offer| offer.own).map(|offer| heap(TOPIC, offer)).collect()
        }
    }
}

fn heap(topic: &'static str, offer: &Offer) -> Finding {
    let plain = offer.plain.unwrap_or_default();
    let place = if offer.stays { "" } else { "; the driver may move it to RAM" };
    let gpu = format!("GPU {}, {}", offer.description, offer.driver);
    if let Some(mapped) = offer.mapped {
        let text = format!("{gpu}: a heap of {mapped} that the CPU reaches{place}");
        return Finding::new(topic, Verdict::Ok, text);
    }
    let text = format!("{gpu}: {plain}, and the CPU reaches none of it{place}");
    Finding::new(topic, Verdict::Note, text)
        .next("tier vulkan copies by the GPU then; resizable BAR would open it to the CPU")
}

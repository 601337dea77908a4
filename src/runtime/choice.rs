// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which fast tiers a configuration stands for. `auto` is decided here: CUDA where
//! there is a GPU for it, for there many pages at once move faster; else Vulkan,
//! if the CPU can reach as much GPU memory as was asked for.

use std::path::Path;

use crate::config::{Cuda, TierKind, Vulkan};
use crate::engine::error::Result;
use crate::engine::gpu::Offer;
use crate::engine::units::ByteLen;

use super::assembly::FastTier;

/// The fast tiers, in the order in which they are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Each of them.
    pub tiers: Vec<FastTier>,
    /// Of `auto`: why these.
    pub why: Option<String>,
}

impl Choice {
    /// What `kind` stands for on this machine, for so many bytes. Looks at the
    /// machine's GPUs for `auto` only, and opens none.
    #[must_use]
    pub fn make(kind: TierKind, cuda: &Cuda, vulkan: &Vulkan, size: ByteLen) -> Self {
        let named = |tiers| Self { tiers, why: None };
        match kind {
            TierKind::Ram => named(vec![FastTier::Ram]),
            TierKind::Cuda => named(by_cuda(cuda)),
            TierKind::Vulkan => named(by_vulkan(vulkan)),
            TierKind::Auto => {
                // Before any driver has a thread: the environment is set.
                #[cfg(feature = "cuda")]
                let _ = crate::tier::cuda::load_eagerly();
                Self::automatic(cuda, vulkan, size)
            }
        }
    }

    fn automatic(cuda: &Cuda, vulkan: &Vulkan, size: ByteLen) -> Self {
        if cfg!(feature = "cuda") && has_cuda_node(Path::new("/dev")) {
            let why = Some("cuda: an NVIDIA GPU is here".to_owned());
            return Self { tiers: by_cuda(cuda), why };
        }
        match auto::covers(vulkan, size) {
            Ok(why) => Self { tiers: by_vulkan(vulkan), why: Some(format!("vulkan: {why}")) },
            Err(why) => {
                let why = Some(format!("cuda, for vulkan is out: {why}"));
                Self { tiers: by_cuda(cuda), why }
            }
        }
    }
}

/// What the Vulkan drivers of this machine offer. Starts the drivers, which wakes a
/// GPU that sleeps.
///
/// Errors: `Missing` without a loader or a driver.
pub fn vulkan_gpus() -> Result<Vec<Offer>> {
    auto::all()
}

/// Whether the folder has the device node of a GPU that CUDA could use.
fn has_cuda_node(dev: &Path) -> bool {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    std::fs::read_dir(dev).is_ok_and(|mut nodes| {
        nodes.any(|node| node.is_ok_and(|node| node.file_name().to_str().is_some_and(is_gpu)))
    })
}

fn by_cuda(cuda: &Cuda) -> Vec<FastTier> {
    let library = &cuda.library;
    cuda.devices
        .iter()
        .map(|device| FastTier::Cuda { library: library.clone(), device: *device })
        .collect()
}

fn by_vulkan(vulkan: &Vulkan) -> Vec<FastTier> {
    let tier = |device| FastTier::Vulkan { library: vulkan.library.clone(), device };
    if vulkan.devices.is_empty() {
        return vec![tier(None)];
    }
    vulkan.devices.iter().map(|device| tier(Some(*device))).collect()
}

#[cfg(feature = "vulkan")]
mod auto {
    use super::{ByteLen, Offer, Result, Vulkan};
    use crate::tier::vulkan::{offers, offers_of};

    pub fn all() -> Result<Vec<Offer>> {
        offers(None)
    }

    /// Whether Vulkan is the way, and why or why not.
    pub fn covers(vulkan: &Vulkan, size: ByteLen) -> std::result::Result<String, String> {
        match offers_of(vulkan.library.as_deref(), &vulkan.devices) {
            Ok(offers) => judge(&offers, size),
            Err(error) => Err(error.to_string()),
        }
    }

    fn judge(offers: &[Offer], size: ByteLen) -> std::result::Result<String, String> {
        for offer in offers {
            let gpu = &offer.description;
            if offer.software {
                return Err(format!("GPU {gpu} is a software device"));
            }
            if !offer.stays {
                return Err(format!(
                    "the driver of GPU {gpu} ({}) may move its memory to RAM; tier.kind = \"vulkan\" \
                     uses it all the same",
                    offer.driver
                ));
            }
        }
        let mapped = ByteLen(offers.iter().filter_map(|offer| offer.mapped).map(|m| m.0).sum());
        let gpus: Vec<&str> = offers.iter().map(|offer| offer.description.as_str()).collect();
        let (gpus, many) = (gpus.join(" and GPU "), if offers.len() > 1 { "s" } else { "" });
        if mapped < size {
            return Err(format!(
                "the CPU reaches {mapped} of GPU {gpus}, and {size} are asked for (resizable BAR \
                 off?)"
            ));
        }
        Ok(format!("the CPU reaches {mapped} of GPU{many} {gpus}, and {size} are asked for"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn offer(mapped_gib: u64) -> Offer {
            Offer {
                number: 0,
                description: "0 (A card)".into(),
                driver: "A driver".into(),
                mapped: (mapped_gib > 0).then_some(ByteLen(mapped_gib << 30)),
                plain: None,
                own: true,
                software: false,
                stays: true,
            }
        }

        #[test]
        fn vulkan_is_the_way_where_all_that_is_asked_for_can_be_mapped() {
            let size = ByteLen(8 << 30);
            let why = judge(&[offer(8)], size).unwrap();
            assert!(why.contains("8 GiB of GPU 0 (A card), and 8 GiB are asked for"), "{why}");
            assert!(judge(&[offer(4), offer(4)], size).is_ok());
            for (offers, part) in [
                (vec![offer(7)], "reaches 7 GiB"),
                (vec![offer(0)], "reaches 0 B"),
                (vec![Offer { software: true, ..offer(8) }], "a software device"),
                (vec![offer(8), Offer { stays: false, ..offer(8) }], "may move its memory"),
            ] {
                let why = judge(&offers, size).unwrap_err();
                assert!(why.contains(part), "{why}");
            }
        }
    }
}

#[cfg(not(feature = "vulkan"))]
mod auto {
    use super::{ByteLen, Offer, Result, Vulkan};
    use crate::engine::error::{Error, Kind};

    pub fn all() -> Result<Vec<Offer>> {
        Err(Error::new(Kind::Missing, "this program was built without tier vulkan"))
    }

    pub fn covers(_: &Vulkan, _: ByteLen) -> std::result::Result<String, String> {
        Err("this program was built without it".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gpu::GpuSelector;

    #[test]
    fn a_kind_that_is_named_is_taken_as_it_is() {
        let vulkan = Vulkan::default();
        let make = |kind, vulkan: &Vulkan| {
            let choice = Choice::make(kind, &Cuda::default(), vulkan, ByteLen(1 << 30));
            assert_eq!(choice.why, None);
            choice.tiers
        };
        assert_eq!(make(TierKind::Ram, &vulkan), [FastTier::Ram]);
        let first = FastTier::Cuda { library: None, device: GpuSelector::Index(0) };
        assert_eq!(make(TierKind::Cuda, &vulkan), [first]);
        let unnamed = FastTier::Vulkan { library: None, device: None };
        assert_eq!(make(TierKind::Vulkan, &vulkan), [unnamed]);
        let devices = vec![GpuSelector::Index(1), GpuSelector::Index(0)];
        let named = Vulkan { devices, ..vulkan };
        let tier = |n| FastTier::Vulkan { library: None, device: Some(GpuSelector::Index(n)) };
        assert_eq!(make(TierKind::Vulkan, &named), [tier(1), tier(0)]);
    }

    #[test]
    fn a_gpu_for_cuda_is_a_numbered_node_and_nothing_else() {
        let dev = tempfile::tempdir().unwrap();
        assert!(!has_cuda_node(&dev.path().join("none")));
        for name in ["nvidiactl", "nvidia-uvm", "nvidia", "nvidia-caps", "dri"] {
            std::fs::write(dev.path().join(name), "").unwrap();
        }
        assert!(!has_cuda_node(dev.path()));
        std::fs::write(dev.path().join("nvidia1"), "").unwrap();
        assert!(has_cuda_node(dev.path()));
    }
}

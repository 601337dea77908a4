// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that the golden files do not show: arithmetic and random input.

use proptest::prelude::*;

use super::check::{check, swap_size};
use super::schema::{Config, spelled};
use crate::engine::units::ByteLen;

fn parsed(text: &str) -> Config {
    check(text).unwrap_or_else(|problems| panic!("{text}\n{problems:?}"))
}

#[test]
fn a_size_is_split_over_the_devices_without_losing_a_byte() {
    let config = parsed("[swap]\nsize = \"70M\"\ndevices = 3\n[tier]\nkind = \"ram\"");
    let sizes: Vec<u64> =
        config.swap.device_sizes(config.swap.size).iter().map(|size| size.0 >> 20).collect();
    assert_eq!(sizes, [24, 24, 22]);
}

#[test]
fn a_shown_configuration_reads_back_as_itself() {
    let text = "[swap]\nsize = \"1G\"\ndevices = 2\n[tier]\nkind = \"ram\"\nsize = \"128M\"\n\
                reserve = \"3K\"\n[spill]\npath = \"/s\"\n[nbd]\nindex = 7";
    let config = parsed(text);
    let shown = toml::to_string(&config).unwrap();
    assert_eq!(parsed(&shown), config);
}

proptest! {
    #[test]
    fn no_text_makes_the_checker_panic(text in "\\PC{0,200}") {
        let _ = check(&text);
    }

    #[test]
    fn near_miss_files_give_problems_inside_the_text(
        key in "[a-z_]{1,12}", value in "(\"[0-9A-Z]{0,4}\"|-?[0-9]{1,20}|true|\\[\\]|1.5)"
    ) {
        let text = format!("[swap]\n{key} = {value}\n[tier]\nkind = \"ram\"\n");
        if let Err(problems) = check(&text) {
            prop_assert!(!problems.is_empty());
            for span in problems.into_iter().filter_map(|problem| problem.span) {
                prop_assert!(text.get(span).is_some());
            }
        }
    }

    #[test]
    fn a_spelled_size_parses_to_the_same_size(bytes in any::<u64>(), shift in 0_u32..41) {
        let size = ByteLen(bytes >> shift << shift);
        prop_assert_eq!(spelled(size).parse::<ByteLen>(), Ok(size));
    }

    #[test]
    fn the_sizes_offered_instead_of_a_bad_one_are_good(bytes in (64_u64 << 20)..(1 << 42)) {
        if let Err(why) = swap_size(ByteLen(bytes)) {
            let offered: Vec<&str> = why.split('"').skip(1).step_by(2).collect();
            prop_assert_eq!(offered.len(), 2);
            for size in offered {
                prop_assert!(swap_size(size.parse().unwrap()).is_ok());
            }
        }
    }
}

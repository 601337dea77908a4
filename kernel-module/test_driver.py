# SPDX-License-Identifier: GPL-2.0-only
"""The check of the semantic patches: on sources of ours, with names that the rules look for."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import core
import driver
from harness.errors import HarnessError
from harness.testing import sentences

PLAIN = """\
#include "uvm_global.h"

static int uvm_init(void)
{
    if (begin())
        return -1;
    return 0;
}

static void uvm_exit(void)
{
    uvm_global_exit();
}
"""
EXPECTED = {"uvm.c": {"(file)": 1, "uvm_exit": 1, "uvm_init": 1}}


def found(text: str) -> driver.Sites:
    """What the rules of the module's begin and end do to a source."""
    return {"uvm.c": driver.sites(text, driver.apply("module", text))}


class TheCheckOfRules(unittest.TestCase):
    """A rule that matches nothing or too much is told."""

    def a_source_as_expected_has_no_differences(self) -> None:
        self.assertEqual(driver.differences(EXPECTED, found(PLAIN)), [])
        after = driver.apply("module", PLAIN)
        self.assertIn("sluice_uvm_connect();\n    return 0;", after)
        self.assertIn("uvm_global_exit();\n    sluice_uvm_disconnect();", after)

    def a_rule_that_matches_nothing_is_told(self) -> None:
        renamed = PLAIN.replace("uvm_exit(void)", "uvm_end(void)")
        self.assertEqual(
            driver.differences(EXPECTED, found(renamed)), ["uvm.c, uvm_exit: 0 lines, not 1"]
        )

    def a_rule_that_matches_too_much_is_told(self) -> None:
        twice = PLAIN.replace("return -1;", "return 0;")
        (said,) = driver.differences(EXPECTED, found(twice))
        self.assertRegex(said, r"^uvm\.c, uvm_init: [2-9] lines, not 1$")

    def a_match_in_another_function_is_told(self) -> None:
        before = "void a(void)\n{\n}\n\nvoid b(void)\n{\n}\n"
        in_a = driver.sites(before, before.replace("{\n}\n\n", "{\n\tx();\n}\n\n"))
        in_b = driver.sites(before, before[:-2] + "\tx();\n}\n")
        self.assertEqual((in_a, in_b), ({"a": 1}, {"b": 1}))
        self.assertEqual(
            driver.differences({"f.c": in_a}, {"f.c": in_b}),
            ["f.c, a: 0 lines, not 1", "f.c, b: 1 lines, not 0"],
        )

    def a_removed_line_is_told(self) -> None:
        before = "void a(void)\n{\n\tx();\n}\n"
        self.assertEqual(driver.sites(before, before.replace("\tx();\n", "")), {"a": 1})

    def a_line_outside_of_functions_is_counted_there(self) -> None:
        before = "void a(void)\n{\n}\n"
        self.assertEqual(driver.sites(before, before + "int x;\n"), {"(file)": 1})

    def a_version_that_is_not_known_is_refused(self) -> None:
        for part in driver.PARTS:
            with self.assertRaisesRegex(HarnessError, "does not know version 1.2; it knows"):
                driver.check(part, lambda path: path, "1.2", driver.load())

    def a_lock_whose_sites_are_missing_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "driver.lock"
            path.write_text('{"sites": {}, "versions": {"1.2": {"sites": "a"}}}')
            with self.assertRaisesRegex(HarnessError, "1.2 names sites 'a'"):
                driver.load(path)
            path.write_text('{"sites": {"a": {}}, "versions": {"1.2": {"sites": "a"}}}')
            with self.assertRaisesRegex(HarnessError, "1.2 names core None"):
                driver.load(path)

    def every_rule_file_has_a_file_to_look_at(self) -> None:
        rules = {
            str(path.relative_to(driver.RULES).with_suffix(""))
            for path in driver.RULES.rglob("*.cocci")
        }
        parts = [*driver.PARTS, driver.TESTING]
        self.assertEqual(rules, {rule for part in parts for rule in part.files})

    def every_known_version_expects_something_of_every_rule(self) -> None:
        lock = driver.load()
        for version, entry in lock["versions"].items():
            for part in driver.PARTS:
                for rule, path in part.files.items():
                    name = pathlib.Path(path).name
                    self.assertTrue(lock["sites"][entry[part.key]].get(name), (version, rule))

    def every_file_of_ours_goes_somewhere(self) -> None:
        there = {
            str(path.relative_to(driver.HERE))
            for folder in ("core_glue", "uvm_glue")
            for path in (driver.HERE / folder).iterdir()
        }
        self.assertEqual(there, set(driver.GLUE))


# The way the core is written: a function's name stands alone on its line.
TASKS = """\
#include "kernel/gpu/fifo/kernel_channel_group.h"

NV_STATUS
kchangrpapiConstruct_IMPL
(
    KernelChannelGroupApi *api,
    CALL_CONTEXT *context,
    RS_RES_ALLOC_PARAMS_INTERNAL *params
)
{
    NV_STATUS status = NV_OK;

    if (listAppendValue(&group->apis, &api) == NULL)
    {
        status = NV_ERR_NO_MEMORY;
        goto failed;
    }

failed:
    return status;
}

NV_STATUS
kchangrpapiCtrlCmdGpFifoSchedule_IMPL
(
    KernelChannelGroupApi *api,
    NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS *params
)
{
    NV_ASSERT_OR_RETURN((descriptor != NULL), NV_ERR_NOT_SUPPORTED);
    return tell(api, params);
}

NV_STATUS
kchangrpapiCtrlCmdSetTimeslice_IMPL
(
    KernelChannelGroupApi *api,
    NVA06C_CTRL_TIMESLICE_PARAMS *params
)
{
    NV_STATUS status = tell(api, params);

    if (status == NV_OK)
        group->timesliceUs = params->timesliceUs;
    return status;
}
"""


class TheRulesOfTheCore(unittest.TestCase):
    """Hooks of the core stand where they have to."""

    def _found(self, text: str) -> dict[str, int]:
        return driver.sites(text, driver.apply("core_tasks", text))

    def a_group_is_told_of_when_it_is_complete(self) -> None:
        after = driver.apply("core_tasks", TASKS)
        self.assertRegex(after, r"\}\s+sluice_core_task_init\(api, context\);\s+failed:")

    def a_refused_group_is_not_scheduled(self) -> None:
        after = driver.apply("core_tasks", TASKS)
        self.assertRegex(
            after,
            r"if \(!sluice_core_bind\(api, params->bEnable\)\)\s+return NV_ERR_BUSY_RETRY;"
            r"\s+return tell\(api, params\);",
        )

    def a_policy_is_asked_of_a_timeslice_after_the_client_has_its_own(self) -> None:
        after = driver.apply("core_tasks", TASKS)
        self.assertRegex(
            after,
            r"if \(status == NV_OK\)\s+group->timesliceUs = "
            r"sluice_core_timeslice\(api,\s*params->timesliceUs\);",
        )

    def each_is_counted_by_the_function_it_is_in(self) -> None:
        self.assertEqual(
            self._found(TASKS),
            {
                "(file)": 1,
                "kchangrpapiConstruct_IMPL": 1,
                "kchangrpapiCtrlCmdGpFifoSchedule_IMPL": 2,
                "kchangrpapiCtrlCmdSetTimeslice_IMPL": 1,
            },
        )

    def a_second_list_in_the_constructor_is_told(self) -> None:
        again = "    if (listAppendValue(&a, &b) == NULL)\n    {\n        goto failed;\n    }\n\n"
        counted = self._found(TASKS.replace("failed:\n", f"{again}failed:\n"))
        self.assertEqual(counted["kchangrpapiConstruct_IMPL"], 2)


class TheLinkedDriver(unittest.TestCase):
    """A module without a hook, or with one that nothing gives, is refused."""

    WHOLE = "\n".join(f"0000 t {name}" for name in core.EXPECTED["nvidia.ko"])

    def a_whole_one_passes(self) -> None:
        core.check("nvidia.ko", f"{self.WHOLE}\n     U kfree\n")

    def a_hook_that_was_dropped_is_told(self) -> None:
        dropped = self.WHOLE.replace("0000 t sluice_core_bind", "0000 t other")
        with self.assertRaisesRegex(HarnessError, "linked without sluice_core_bind"):
            core.check("nvidia.ko", dropped)

    def a_call_that_nothing_answers_is_told(self) -> None:
        with self.assertRaisesRegex(HarnessError, "nothing gives: sluice_gpu_bind"):
            core.check("nvidia.ko", f"{self.WHOLE}\n     U sluice_gpu_bind\n")


def load_tests(*_: object) -> unittest.TestSuite:
    """Names the tests to unittest, which finds only names that begin with `test`."""
    return sentences(TheCheckOfRules, TheRulesOfTheCore, TheLinkedDriver)

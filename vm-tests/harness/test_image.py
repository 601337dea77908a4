# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is taken from a kernel's packages, old and new, without unpacking one."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from . import apt, image, payload
from .errors import HarnessError
from .testing import sentences

OLD = "6.12.95+deb12-cloud-amd64"
NEW = "7.3.4+deb13-cloud-amd64"
SHOWN = f"""Package: linux-image-{NEW}
Pre-Depends: linux-base (>= 4.17~)
Depends: dracut | initramfs-tools (>= 0.120), linux-binary-{NEW} (= 7.3.4-1), linux-modules-{NEW}
Recommends: apparmor
"""


class Kernels(unittest.TestCase):
    """The parts of a kernel, wherever its packages have them."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def _booting(self, version: str) -> None:
        """Has the image be of that kernel."""
        patch = mock.patch.dict(os.environ, {"SLUICE_VM_KERNEL": version})
        patch.start()
        self.addCleanup(patch.stop)

    def _modules(self, dependencies: str, built_in: str) -> pathlib.Path:
        """Writes what depmod and the package say about modules."""
        (self.folder / "modules.dep").write_text(dependencies, encoding="ascii")
        (self.folder / "modules.builtin").write_text(built_in, encoding="ascii")
        return self.folder

    def a_package_is_split_into_what_it_depends_on(self) -> None:
        archive = apt.Archive.__new__(apt.Archive)
        archive._options = []
        with mock.patch.object(apt, "_output", return_value=SHOWN):
            found = archive.needs(f"linux-image-{NEW}")
        self.assertEqual(found, ["dracut", f"linux-binary-{NEW}", f"linux-modules-{NEW}"])

    def the_kernel_lies_in_boot_or_beside_its_modules(self) -> None:
        for version, place in ((OLD, f"boot/vmlinuz-{OLD}"), (NEW, f"usr/lib/modules/{NEW}/vmlinuz")):
            self._booting(version)
            (self.folder / place).parent.mkdir(parents=True)
            with self.assertRaisesRegex(HarnessError, "packages of kernel"):
                image._kernel_in(self.folder)
            (self.folder / place).touch()
            self.assertEqual(image._kernel_in(self.folder), self.folder / place)

    def a_module_is_loaded_after_what_it_depends_on(self) -> None:
        modules = self._modules(
            "a/libcrc32c.ko: a/crc32c_generic.ko\na/crc32c_generic.ko:\na/virtio.ko:\n"
            "a/virtio_blk.ko: a/virtio.ko\na/erofs.ko: a/netfs.ko a/libcrc32c.ko\n",
            "a/overlay.ko\n",
        )
        order = [pathlib.Path(path).stem for path in image._load_order(modules)]
        self.assertEqual(order, "crc32c_generic virtio virtio_blk libcrc32c netfs erofs".split())

    def newer_kernels_have_no_module_for_checksums(self) -> None:
        modules = self._modules("a/erofs.ko:\na/overlay.ko:\n", "a/virtio_blk.ko\n")
        self.assertEqual(image._load_order(modules), ["a/erofs.ko", "a/overlay.ko"])
        modules = self._modules("a/erofs.ko:\n", "a/virtio_blk.ko\n")
        with self.assertRaisesRegex(HarnessError, "has no module overlay"):
            image._load_order(modules)

    def modules_say_which_kernel_they_are_for(self) -> None:
        place = self.folder / "kernel-module/sluice_gpu.ko"
        place.parent.mkdir()
        place.write_bytes(f"\0name=x\0vermagic={NEW} SMP preempt\0".encode())
        with mock.patch.object(payload, "KERNEL", self.folder):
            self.assertEqual(payload.modules_release(), NEW)
            place.write_bytes(b"\0name=x\0")
            with self.assertRaisesRegex(HarnessError, "says of no kernel"):
                payload.modules_release()


def load_tests(*_: object) -> unittest.TestSuite:
    """Called by unittest."""
    return sentences(Kernels)

# SPDX-License-Identifier: MIT OR Apache-2.0
# What can be known to be wrong from the whole machine's configuration. Whether the
# file is right in itself is for `sluice config check`, which the build runs; what is
# repeated here of it has a way out among the options of other modules.
{
  config,
  lib,
  ...
}:

let
  cfg = config.services.sluice;
  inherit (import ./sizes.nix { inherit lib; }) bytes;
  inherit (config.boot) kernelPackages;

  settings = cfg.settings;
  kind = settings.tier.kind or "auto";
  priority = settings.swap.priority or 1500;
  swapSize = bytes (settings.swap.size or null);
  tierSize = bytes (settings.tier.size or null);
  spill = settings.spill.path or null;

  memoryFilesystems = [
    "tmpfs"
    "ramfs"
    "zram"
  ];
  spillFilesystems = [
    "ext4"
    "xfs"
    "btrfs"
    "auto"
  ];
  below = mountPoint: mountPoint == "/" || lib.hasPrefix "${mountPoint}/" spill;
  mounts =
    lib.mapAttrsToList (_: mount: { inherit (mount) mountPoint fsType; }) config.fileSystems
    # What systemd and NixOS mount without an entry.
    ++
      map
        (mountPoint: {
          inherit mountPoint;
          fsType = "tmpfs";
        })
        (
          [
            "/run"
            "/dev/shm"
          ]
          ++ lib.optional config.boot.tmp.useTmpfs "/tmp"
        );
  deepest =
    lib.foldl'
      (
        found: mount:
        if
          below mount.mountPoint && lib.stringLength mount.mountPoint > lib.stringLength found.mountPoint
        then
          mount
        else
          found
      )
      {
        mountPoint = "";
        fsType = "auto";
      }
      mounts;
  isDevice = lib.hasPrefix "/dev/" spill && !lib.hasPrefix "/dev/shm/" spill;
  spillMount = if spill == null || isDevice then null else deepest;
  mountedSpill = lib.findFirst (mount: mount.device == spill) null (
    lib.attrValues config.fileSystems
  );

  # Other swap that is filled no later than ours.
  faster =
    lib.optional (config.zramSwap.enable && config.zramSwap.priority >= priority) {
      name = "zramSwap";
      option = "zramSwap.priority";
      inherit (config.zramSwap) priority;
    }
    ++ map (swap: {
      name = "the swap device ${swap.device}";
      option = "its priority in swapDevices";
      inherit (swap) priority;
    }) (lib.filter (swap: swap.priority != null && swap.priority >= priority) config.swapDevices);
  swapPaths = map (swap: swap.device) config.swapDevices;
  # Without an index any free device may become Sluice's.
  firstNbd = settings.nbd.index or 0;
  endOfNbd = if settings ? nbd.index then firstNbd + (settings.swap.devices or 1) else 1048576;
  mayBeOurs =
    path:
    let
      number = builtins.match "/dev/nbd([0-9]+)" path;
      n = lib.toIntBase10 (lib.head number);
    in
    number != null && n >= firstNbd && n < endOfNbd;
  nbdSwap = lib.filter mayBeOurs swapPaths;

  chosen =
    choice:
    lib.filter (name: name != null) [
      choice.eviction
      choice.prefetch
      choice.scheduling
    ];
  policies = lib.concatMap chosen ([ cfg.policies ] ++ cfg.policies.scope);

  inherit (cfg.kernel) driver;
  lock = lib.importJSON ../kernel-module/driver.lock;
  release = driver.package.version;

  refused = assertion: message: {
    assertion = !assertion;
    inherit message;
  };
in
{
  config = lib.mkMerge [
    (lib.mkIf cfg.enable {
      assertions = [
        (refused (!(settings ? swap.size)) ''
          services.sluice.enable is set, and services.sluice.swap.size is not.
          Say how much swap to offer, e.g. services.sluice.swap.size = "8G", or leave
          services.sluice.enable out.
        '')
        (refused (!kernelPackages.kernelAtLeast "6.1") ''
          services.sluice needs Linux 6.1 or newer, and boot.kernelPackages has
          ${kernelPackages.kernel.version}. Choose a newer one, e.g.
          boot.kernelPackages = pkgs.linuxPackages, or leave services.sluice.enable out.
        '')
        (refused (kind == "cuda" && !config.hardware.nvidia.enabled && !(settings ? cuda.library)) ''
          services.sluice.tier.kind is "cuda", and no NVIDIA driver is configured.
          With an NVIDIA GPU: services.xserver.videoDrivers = [ "nvidia" ] (also on a machine
          without a display), or name the driver's library in services.sluice.cuda.library.
          With another GPU: services.sluice.tier.kind = "vulkan". Without one: "ram" takes locked
          RAM, to try Sluice.
        '')
        (refused (kind != "ram" && !config.hardware.graphics.enable && !(settings ? cuda.library)) ''
          services.sluice.tier.kind is "${kind}", and nothing puts the GPU's driver into
          /run/opengl-driver. Set hardware.graphics.enable = true (also on a machine without a
          display), or name CUDA's library in services.sluice.cuda.library. Without a GPU:
          services.sluice.tier.kind = "ram" takes locked RAM, to try Sluice.
        '')
        (refused
          (
            settings ? cuda
            && !lib.elem kind [
              "auto"
              "cuda"
            ]
          )
          ''
            services.sluice.cuda names GPUs or their library, and services.sluice.tier.kind is
            "${kind}". Set services.sluice.tier.kind = "cuda", or leave services.sluice.cuda out.
          ''
        )
        (refused
          (
            settings ? vulkan
            && !lib.elem kind [
              "auto"
              "vulkan"
            ]
          )
          ''
            services.sluice.vulkan names GPUs or the loader, and services.sluice.tier.kind is
            "${kind}". Set services.sluice.tier.kind = "vulkan", or leave services.sluice.vulkan out.
          ''
        )
        (refused (!cfg.swap.belowZram && faster != [ ]) (
          lib.concatMapStrings (other: ''
            ${other.name} has priority ${toString other.priority}, and services.sluice.swap.priority
            is ${toString priority}: the fast memory would stay unused until that is full. Lower
            ${other.option} or raise services.sluice.swap.priority; if that one is
            meant to be filled first, set services.sluice.swap.belowZram = true.
          '') faster
        ))
        (refused (nbdSwap != [ ]) ''
          swapDevices has ${toString nbdSwap}. Sluice switches its own devices on and off: remove
          the entry. If another server has that device, keep Sluice's apart from it with
          services.sluice.nbd.index.
        '')
        (refused (spill != null && lib.elem spill swapPaths) ''
          ${toString spill} is both services.sluice.spill.path and in swapDevices: two would write to
          it. Remove it from swapDevices, or give services.sluice.spill.path another partition or file.
        '')
        (refused (mountedSpill != null) ''
          ${toString spill} is services.sluice.spill.path, and fileSystems mounts it at
          ${toString (mountedSpill.mountPoint or "")}: two would write to it. Make a file there with
          services.sluice.spill.path = "${toString (mountedSpill.mountPoint or "")}/spill" and
          services.sluice.spill.size, or remove the entry from fileSystems.
        '')
        (refused (spillMount != null && lib.elem spillMount.fsType memoryFilesystems) ''
          services.sluice.spill.path = "${toString spill}" is on ${spillMount.fsType or ""}
          (${spillMount.mountPoint or ""}), which keeps it in the memory that is to be relieved.
          Name a partition, or a file on ext4, xfs or btrfs on a disk.
        '')
        (refused (spillMount != null && !lib.elem spillMount.fsType (memoryFilesystems ++ spillFilesystems))
          ''
            services.sluice.spill.path = "${toString spill}" is on ${spillMount.fsType or ""}
            (${spillMount.mountPoint or ""}), on which the store refuses a spill. Name a partition (of
            zfs: a zvol), or a file on ext4, xfs or btrfs.
          ''
        )
        (refused (settings ? swap.min_size && spill != null) ''
          services.sluice.swap.minSize and services.sluice.spill.path are both set. With a spill the
          size is exact: leave minSize out, or the spill.
        '')
        (refused ((settings.swap.durability or "writeback") == "mirror" && spill == null) ''
          services.sluice.swap.durability is "mirror", and there is no spill to write each page to.
          Set services.sluice.spill.path, or leave durability out.
        '')
        (refused (swapSize != null && tierSize != null && tierSize > swapSize) ''
          services.sluice.tier.size = "${settings.tier.size or ""}" is more than
          services.sluice.swap.size = "${settings.swap.size or ""}". Lower the one or raise the other.
        '')
        (refused (swapSize != null && tierSize != null && tierSize < swapSize && spill == null) ''
          services.sluice.tier.size = "${settings.tier.size or ""}" is less than
          services.sluice.swap.size = "${settings.swap.size or ""}", and nothing takes the rest. Set
          services.sluice.spill.path, or leave tier.size out.
        '')
        (refused (cfg.spill.size != null && spill == null) ''
          services.sluice.spill.size is set, and services.sluice.spill.path is not. Name the file to
          make, e.g. services.sluice.spill.path = "/var/lib/sluice/spill", or leave size out.
        '')
        (refused (cfg.spill.size != null && spill != null && isDevice) ''
          services.sluice.spill.size makes a file, and services.sluice.spill.path = "${toString spill}"
          is a device. Leave size out, or name a file.
        '')
        (refused (cfg.spill.size != null && swapSize != null && bytes cfg.spill.size < swapSize) ''
          services.sluice.spill.size = "${toString cfg.spill.size}" is less than
          services.sluice.swap.size = "${settings.swap.size or ""}", which the spill must be able to
          hold. Raise the one or lower the other.
        '')
        (refused (((settings.battery.on_battery or "stop") == "shrink") != (settings ? battery.shrink_to))
          ''
            services.sluice.battery.onBattery = "shrink" and services.sluice.battery.shrinkTo belong
            together. Set both, or leave both out.
          ''
        )
        (refused ((settings ? battery.shrink_to || settings ? control.idle_target) && spill == null) ''
          services.sluice.battery.shrinkTo and services.sluice.control.idleTarget give back a part of the
          memory, which without a spill is not possible. Set services.sluice.spill.path, or leave them
          out.
        '')
        (refused (mayBeOurs config.boot.resumeDevice) ''
          boot.resumeDevice is ${config.boot.resumeDevice}, a device of services.sluice: what is in a
          GPU is gone when the machine is off. Name swap on a disk, or leave boot.resumeDevice out.
        '')
      ];

      warnings =
        lib.optional (!(settings.swap.discard or true)) ''
          services.sluice.swap.discard is false: memory that the kernel no longer needs is given back
          at the stop only.
        ''
        ++ lib.optional (!(settings.swap.checksums or true)) ''
          services.sluice.swap.checksums is false: a page that the GPU's memory changed is given to its
          program as it is.
        ''
        ++ lib.optional (cfg.swap.belowZram && faster == [ ]) ''
          services.sluice.swap.belowZram is set, and no other swap has a priority of at least ${toString priority}:
          it changes nothing.
        ''
        ++ lib.optional ((settings.nbd.dead_connection_timeout_s or 86400) < 3600) ''
          services.sluice.nbd.deadConnectionTimeoutS is below an hour: if the store is gone for that long,
          its pages are lost, and with them the programs that they belong to.
        ''
        ++ lib.optional ((config.boot.kernel.sysctl."vm.swappiness" or null) == 0) ''
          boot.kernel.sysctl."vm.swappiness" is 0: the kernel swaps only when it is nearly out of memory,
          so that Sluice's memory stays unused.
        '';
    })

    {
      assertions = [
        (refused (cfg.kernel.enable && !kernelPackages.kernelAtLeast "6.12") ''
          services.sluice.kernel.enable needs Linux 6.12 or newer, and boot.kernelPackages has
          ${kernelPackages.kernel.version}. Choose a newer one, e.g.
          boot.kernelPackages = pkgs.linuxPackages_latest, or leave services.sluice.kernel.enable and
          services.sluice.policies out.
        '')
        (refused (policies != [ ] && !cfg.kernel.enable) ''
          services.sluice.policies names ${lib.concatStringsSep ", " policies}, and
          services.sluice.kernel.enable is not set: there would be nothing to attach them to. Set it,
          or leave the policies out.
        '')
        (refused (driver.enable && !cfg.kernel.enable) ''
          services.sluice.kernel.driver.enable is set, and services.sluice.kernel.enable is not: the
          patched driver would find no module to ask. Set it, or leave kernel.driver.enable out.
        '')
        (refused (driver.enable && !config.hardware.nvidia.enabled) ''
          services.sluice.kernel.driver.enable patches NVIDIA's driver, and no NVIDIA driver is
          configured. Set services.xserver.videoDrivers = [ "nvidia" ] (also on a machine without a
          display), or leave services.sluice.kernel.driver.enable out.
        '')
        # Of the older drivers it is null where nothing is said, and false for the closed ones.
        (refused
          (driver.enable && config.hardware.nvidia.enabled && (config.hardware.nvidia.open or null) != true)
          ''
            services.sluice.kernel.driver.enable patches the open kernel modules of NVIDIA's driver,
            and hardware.nvidia.open is not true. Set hardware.nvidia.open = true, for GPUs from
            Turing on, or leave services.sluice.kernel.driver.enable out.
          ''
        )
        (refused (driver.enable && !lock.versions ? ${release}) ''
          services.sluice.kernel.driver.package is release ${release}, which the semantic patches were
          not checked with. Choose one of ${lib.concatStringsSep ", " (lib.attrNames lock.versions)},
          e.g. by config.boot.kernelPackages.nvidiaPackages.mkDriver, or leave
          services.sluice.kernel.driver.enable out.
        '')
      ];
    }
  ];
}

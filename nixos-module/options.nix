# SPDX-License-Identifier: MIT OR Apache-2.0
# The options that become keys of /etc/sluice/sluice.toml, by one rule: the option
# `swap.minSize` is the key `min_size` of the section [swap]. So a new key needs an
# option here and nothing else. `make nix` fails while the reference of the
# configuration file has a key without its option, or with another default.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib) literalExpression mkOption types;
  cfg = config.services.sluice;
  format = pkgs.formats.toml { };
  size = (import ./sizes.nix { inherit lib; }).type;
  absolutePath = types.strMatching "/.+" // {
    description = "absolute path";
  };

  ownAddress = types.strMatching "unix:/.+|127\\.[0-9.]+:[0-9]+|\\[::1]:[0-9]+" // {
    description = "loopback address with its port, or unix: and an absolute path";
  };

  sections = [
    "swap"
    "tier"
    "cuda"
    "vulkan"
    "spill"
    "nbd"
    "log"
    "battery"
    "control"
    "metrics"
  ];
  # These decide what the module does, and are no keys.
  ownOptions = {
    swap = [ "belowZram" ];
    spill = [ "size" ];
  };
  key =
    name:
    lib.concatMapStrings (char: if lib.toLower char == char then char else "_${lib.toLower char}") (
      lib.stringToCharacters name
    );
  # Options to keys, at any depth; what is not set is left out.
  keysOf =
    options:
    lib.mapAttrs' (name: value: lib.nameValuePair (key name) value) (
      lib.filterAttrs (_: value: value != null) options
    );
  sectionOf = name: keysOf (removeAttrs cfg.${name} (ownOptions.${name} or [ ]));
  # An empty section is not nothing: [spill] demands a path, [cuda] a GPU tier.
  store = lib.filterAttrs (_: keys: keys != { }) (lib.genAttrs sections sectionOf);
  # Scopes are sections of their own; the names of policies are no options.
  policies = lib.filterAttrs (_: value: value != { } && value != [ ]) (
    sectionOf "policies" // { scope = map keysOf cfg.policies.scope; }
  );
  # Each is a section of its own.
  tenants = lib.mapAttrs (_: keysOf) cfg.tenants;
  defined =
    lib.optionalAttrs cfg.enable store
    // lib.optionalAttrs (cfg.enable && tenants != { }) { inherit tenants; }
    // lib.optionalAttrs cfg.kernel.enable { inherit policies; };
in
{
  options.services.sluice = {
    enable = lib.mkEnableOption "Sluice, swap in GPU memory that nobody uses";

    package = mkOption {
      type = types.package;
      default = pkgs.callPackage ./packages/sluice.nix { };
      defaultText = literalExpression "pkgs.callPackage ./packages/sluice.nix { }";
      example = literalExpression "pkgs.sluice";
      description = "The package with the programs and the unit.";
    };

    swap = {
      size = mkOption {
        type = types.nullOr size;
        default = null;
        example = "8G";
        description = ''
          How much swap to offer, over all devices together: "64M" to "8T", a multiple
          of 2 MiB. Required. It stays the same from start to stop.
        '';
      };
      minSize = mkOption {
        type = types.nullOr size;
        default = null;
        example = "2G";
        description = ''
          The least to start with, a multiple of 512 MiB. Without it
          {option}`services.sluice.swap.size` is exact. With it, a store without a spill
          starts with what its fast tiers can hold above
          {option}`services.sluice.tier.reserve`, or refuses to start if that is less.
          Not allowed with a spill, which holds all of the size.
        '';
      };
      priority = mkOption {
        type = types.ints.between (-1) 32767;
        default = 1500;
        example = 50;
        description = ''
          Swap priority of each device; higher is filled first. -1 lets the kernel choose,
          below all that have one.
        '';
      };
      belowZram = mkOption {
        type = types.bool;
        default = false;
        example = true;
        description = ''
          Says that other swap (zram, or a disk) is meant to be filled first. Without it, a
          configuration in which another swap area has a priority as high as Sluice's is
          refused: the fast memory would stay unused.
        '';
      };
      discard = mkOption {
        type = types.bool;
        default = true;
        example = false;
        description = ''
          Whether the kernel says which clusters of 2 MiB are free again. Without it nothing
          is given back before the stop.
        '';
      };
      devices = mkOption {
        type = types.ints.between 1 16;
        default = 1;
        example = 4;
        description = ''
          Equal devices that share the size, each with an I/O thread of its own: more
          parallelism.
        '';
      };
      swapon = mkOption {
        type = types.bool;
        default = true;
        example = false;
        description = ''
          Whether the devices are switched on as swap. Otherwise they are attached only.
        '';
      };
      checksums = mkOption {
        type = types.bool;
        default = true;
        example = false;
        description = "Whether each page has a CRC32C that is compared at each read.";
      };
      durability = mkOption {
        type = types.enum [
          "writeback"
          "mirror"
        ];
        default = "writeback";
        example = "mirror";
        description = ''
          What a write has reached when it is answered. `writeback`: the tier that holds the
          page. `mirror`: the spill too, so that a GPU that fails loses no page and giving its
          memory back copies nothing; every write then costs a write to the spill. Reads that are
          under way when a GPU stops answering are errors all the same. Needs a spill.
        '';
      };
    };

    tier = {
      kind = mkOption {
        type = types.enum [
          "auto"
          "cuda"
          "ram"
          "vulkan"
        ];
        default = "auto";
        example = "cuda";
        description = ''
          Which memory is lent. `vulkan`: GPU memory that the processor reaches itself, of any GPU
          with a Vulkan driver. `cuda`: GPU memory through NVIDIA's driver. `auto`: CUDA where there
          is an NVIDIA GPU, else Vulkan where the processor reaches as much as is asked for; where
          there is neither, the start fails and says what was looked for. `ram`: locked RAM, which
          makes no machine faster: to try Sluice without a GPU, and never chosen by itself.
        '';
      };
      size = mkOption {
        type = types.nullOr size;
        default = null;
        defaultText = literalExpression "config.services.sluice.swap.size";
        example = "6G";
        description = ''
          The most of that memory to hold, at most {option}`services.sluice.swap.size`. Less
          than that needs a spill.
        '';
      };
      reserve = mkOption {
        type = size;
        default = "0";
        example = "1G";
        description = ''
          Memory of each GPU that is always left to others: it is compared with the free memory
          before more is taken. Without a spill it counts at the start only.
        '';
      };
    };

    cuda = {
      library = mkOption {
        type = types.nullOr absolutePath;
        default = null;
        example = "/usr/lib/wsl/lib/libcuda.so.1";
        description = ''
          The driver's library, where it is not the one in {file}`/run/opengl-driver/lib`.
        '';
      };
      devices = mkOption {
        type = types.nullOr (types.nonEmptyListOf types.nonEmptyStr);
        default = null;
        defaultText = literalExpression ''[ "0" ]'';
        example = [ "0000:01:00.0" ];
        description = ''
          The GPUs, filled in this order: by number, by UUID (`"GPU-..."`) or by PCI address.
        '';
      };
    };

    vulkan = {
      library = mkOption {
        type = types.nullOr absolutePath;
        default =
          if
            lib.elem cfg.tier.kind [
              "auto"
              "vulkan"
            ]
          then
            "${pkgs.vulkan-loader}/lib/libvulkan.so.1"
          else
            null;
        defaultText = literalExpression "\"\${pkgs.vulkan-loader}/lib/libvulkan.so.1\"";
        example = "/run/opengl-driver/lib/libvulkan.so.1";
        description = ''
          The Vulkan loader. The drivers themselves it finds through
          {option}`hardware.graphics.enable`.
        '';
      };
      devices = mkOption {
        type = types.nullOr (types.nonEmptyListOf types.nonEmptyStr);
        default = null;
        example = [ "0000:01:00.0" ];
        description = ''
          The GPUs, filled in this order: by number, by UUID (`"GPU-..."`) or by PCI address. By
          default the first with memory of its own.
        '';
      };
    };

    spill = {
      path = mkOption {
        type = types.nullOr absolutePath;
        default = null;
        example = "/dev/disk/by-partlabel/sluice-spill";
        description = ''
          Where pages go that the fast tier cannot hold or that had to leave it: a partition, a
          logical volume or a fully written file on ext4, xfs or btrfs. Without it the whole swap
          size is taken from the GPU at the start, and nothing can be given back while the swap is
          on.
        '';
      };
      size = mkOption {
        type = types.nullOr size;
        default = null;
        example = "8G";
        description = ''
          Make {option}`services.sluice.spill.path` a file that can hold so much swap, if it does
          not exist when the store is started. Every block of it is written, which takes as long as
          that takes. An existing file is left as it is.
        '';
      };
    };

    nbd = {
      index = mkOption {
        type = types.nullOr (types.ints.between 0 1048575);
        default = null;
        example = 8;
        description = ''
          N of the first {file}`/dev/nbdN`; the other devices follow. By default the first free
          ones.
        '';
      };
      deadConnectionTimeoutS = mkOption {
        type = types.ints.between 60 4294967295;
        default = 86400;
        example = 604800;
        description = ''
          Seconds that the kernel keeps a device whose server is gone. When they are over, the
          device and its pages are lost.
        '';
      };
      ioTimeoutMs = mkOption {
        type = types.ints.between 10 60000;
        default = 100;
        example = 250;
        description = ''
          Milliseconds after which the kernel sends requests again over a new connection.
        '';
      };
    };

    battery = {
      onBattery = mkOption {
        type = types.enum [
          "stop"
          "shrink"
          "keep"
        ];
        default = "stop";
        example = "shrink";
        description = ''
          What is done on battery. `stop`: all GPU memory is given back and the GPU closed, so that it
          can sleep; swap stays on, its pages go to the spill. Without a spill the swap is switched
          off instead. `shrink`: at most {option}`services.sluice.battery.shrinkTo` is held. `keep`:
          nothing.
        '';
      };
      threshold = mkOption {
        type = types.ints.between 0 100;
        default = 100;
        example = 40;
        description = ''
          The battery's level in percent from which down it is done. 100: always on battery.
        '';
      };
      resumeThreshold = mkOption {
        type = types.ints.between 0 100;
        default = 0;
        example = 60;
        description = ''
          Once done, it ends on AC when the battery is at this level again. 0: on AC at once. On
          battery it never ends.
        '';
      };
      shrinkTo = mkOption {
        type = types.nullOr size;
        default = null;
        example = "512M";
        description = ''
          The most to hold on battery, with `onBattery = "shrink"` and only then. Needs a spill.
        '';
      };
    };

    control = {
      idleTarget = mkOption {
        type = types.nullOr size;
        default = null;
        example = "1G";
        description = ''
          The most GPU memory to hold while no program waits for memory: the rest stays with the GPU's
          own programs until the machine is short of memory. Needs a spill.
        '';
      };
      memoryPressure = mkOption {
        type = types.ints.between 1 100;
        default = 10;
        example = 20;
        description = ''
          The machine counts as short of memory while some program waited for it for so many percent
          of the last ten seconds. Looked at only with an idle target.
        '';
      };
      dwellS = mkOption {
        type = types.ints.between 0 3600;
        default = 5;
        example = 30;
        description = ''
          Seconds for which every reason to hold less must be gone before more is held.
        '';
      };
    };

    metrics.listen = mkOption {
      type = types.nullOr ownAddress;
      default = null;
      example = "127.0.0.1:9778";
      description = ''
        Where Prometheus is answered, at `/metrics`: an address that only this machine reaches, or
        a socket such as `unix:/run/sluiced/metrics`. Nothing asks who is there. By default it is
        nowhere.
      '';
    };

    log.level = mkOption {
      type = types.enum [
        "error"
        "warn"
        "info"
        "debug"
        "trace"
      ];
      default = "info";
      example = "debug";
      description = "The least severe level that is logged.";
    };

    settings = mkOption {
      type = types.submodule { freeformType = format.type; };
      default = { };
      example = literalExpression ''
        {
          swap.priority = 50;
        }
      '';
      description = ''
        The contents of {file}`/etc/sluice/sluice.toml`, with the keys of the configuration
        file's reference. The options above are defaults for it; what is said here goes before
        them. For keys that have no option.
      '';
    };

    checkConfig = mkOption {
      type = types.bool;
      default = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;
      defaultText = literalExpression "pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform";
      example = false;
      description = ''
        Whether the file is checked with {command}`sluice config check` when the system is
        built, so that a mistake in it stops the build, not the next start.
      '';
    };
  };

  config.services.sluice.settings = lib.mapAttrs (_: lib.mapAttrs (_: lib.mkDefault)) defined;
}

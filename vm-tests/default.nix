# SPDX-License-Identifier: MIT OR Apache-2.0
# The scenarios as NixOS tests: each file of scenarios/ is a test script, with the same
# prelude before it that it has in a Debian machine. Gives an attribute for each.
{ pkgs, packages }:

let
  inherit (pkgs) lib;

  # These want programs or units at Debian's paths.
  debianOnly = [
    "made-by-install"
    "reload-upgrade"
  ];
  # The harness's own tests, about itself.
  ofTheHarness = lib.hasPrefix "harness-";

  names = lib.filter (name: !ofTheHarness name && !lib.elem name debianOnly) (
    map (lib.removeSuffix ".py") (
      lib.filter (lib.hasSuffix ".py") (lib.attrNames (builtins.readDir ./scenarios))
    )
  );

  # The words of the line `# vm: timeout=900 memory=2048` of a scenario.
  header =
    text:
    let
      line = lib.findFirst (lib.hasPrefix "# vm:") "# vm:" (lib.splitString "\n" text);
      words = lib.filter (word: word != "") (lib.splitString " " (lib.removePrefix "# vm:" line));
    in
    lib.listToAttrs (
      map (
        word:
        let
          pair = lib.splitString "=" word;
        in
        lib.nameValuePair (lib.head pair) (lib.last pair)
      ) words
    );
  # "spill:512M,swap:1G" to what the virtual machine's module takes, in MiB.
  disksOf =
    text:
    map (
      word:
      let
        parts = builtins.match "([a-z0-9-]+):([0-9]+)([MG])" word;
        number = lib.toInt (lib.elemAt parts 1);
      in
      {
        size = if lib.elemAt parts 2 == "G" then number * 1024 else number;
        # The scenarios' names: /dev/disk/by-id/virtio-spill.
        driveConfig.deviceExtraOpts.serial = lib.head parts;
      }
    ) (lib.splitString "," text);

  # Programs that fill memory and do harm, and the driver library without a GPU.
  pressure = pkgs.stdenv.mkDerivation {
    name = "sluice-test-programs";
    src = ./pressure;
    buildPhase = ''
      for source in *.c; do
        $CC -std=c17 -O2 -Wall -Wextra -pthread -o ''${source%.c} $source
      done
    '';
    installPhase = ''
      for source in *.c; do
        install -Dm755 -t $out/bin ''${source%.c}
      done
    '';
  };
  fakeDriver = packages.sluice.overrideAttrs {
    pname = "sluice-fake-cuda";
    cargoBuildFlags = [
      "--package"
      "sluice-fake-cuda"
    ];
    # In a folder of its own, so that no loader finds it by accident.
    postInstall = ''
      find target -name libfake_cuda.so -exec install -Dm755 {} $out/fake/libcuda.so.1 \;
    '';
  };
  modulesOf =
    kernelPackages:
    let
      inherit (kernelPackages.callPackage ../nixos-module/packages/sluice-gpu-module.nix { }) raw;
    in
    pkgs.runCommandLocal "sluice-test-tree" { nativeBuildInputs = [ pkgs.binutils ]; } ''
      mkdir -p $out/modules
      cp ${raw}/*.ko $out/modules
      objcopy --remove-section .BTF ${raw}/sluice_gpu.ko $out/modules/without_btf.ko
      ln -s ${packages.sluice-bpf}/lib/sluice/{policies,probes} $out
      ln -s ${misuse}/{misuse,examples} $out
    '';
  misuse = packages.sluice-bpf.overrideAttrs {
    pname = "sluice-bpf-misuse";
    postInstall = ''
      for kind in misuse examples; do
        mkdir -p $out/$kind
        for source in bpf/$kind/*.bpf.c; do
          clang $BPF_FLAGS -c $source -o $out/$kind/$(basename $source .c).o
        done
      done
    '';
  };

  # A machine without the service's configuration: the scenario writes its own.
  bare = {
    systemd.packages = [ packages.sluice ];
    services.dbus.packages = [ packages.sluice ];
    security.polkit.enable = true;
    services.upower.enable = true;
    # So that the fake driver's settings reach a store that PID 1 starts.
    systemd.tmpfiles.rules = [
      "d /etc/sluice 0755 root root"
      "L+ /usr/lib/sluice-fake - - - - ${fakeDriver}/fake"
      "L+ /usr/lib/systemd/system/sluice-store.service - - - - ${packages.sluice}/lib/systemd/system/sluice-store.service"
    ];
    environment.systemPackages = [ packages.sluice ];
  };
  # The machine whose rendering the scenario of that name installs elsewhere.
  example =
    name:
    let
      module = import (../nixos-module/tests/examples + "/${name}.nix");
    in
    {
      imports = [
        ../nixos-module
        module
      ];
      services.sluice.package = packages.sluice;
      # The module of virtual machines drops every other file system and all swap
      # devices; without the latter the example would not be the example.
      virtualisation.fileSystems = lib.mapAttrs (
        _: mount: mount // { options = [ "x-systemd.makefs" ]; }
      ) (module.fileSystems or { });
      swapDevices = lib.mkOverride 9 (module.swapDevices or [ ]);
    };

  make =
    name:
    let
      path = ./scenarios + "/${name}.py";
      text = builtins.readFile path;
      words = header text;
      isExample = lib.hasPrefix "nixos-" name;
    in
    pkgs.testers.runNixOSTest {
      name = "sluice-${name}";
      globalTimeout = lib.toInt (words.timeout or "600");
      nodes.machine =
        { config, pkgs, ... }:
        {
          imports = [ (if isExample then example (lib.removePrefix "nixos-" name) else bare) ];
          virtualisation = {
            memorySize = lib.toInt (words.memory or "1024");
            cores = lib.toInt (words.cpus or "2");
            emptyDiskImages = disksOf (words.disks or "spill:1G,swap:1G");
          };
          environment.systemPackages = [
            fakeDriver
            pressure
          ]
          ++ (with pkgs; [
            e2fsprogs
            fio
            libnbd
            nbd
            procps
            strace
            xfsprogs
          ])
          ++ lib.optional (words.binaries or "" == "policies") packages.sluice-bpf;
          systemd.tmpfiles.rules = lib.mkIf (words.binaries or "" == "policies") [
            "L+ /usr/lib/sluice - - - - ${modulesOf config.boot.kernelPackages}"
          ];
        };
      testScript = builtins.readFile ./common/prelude.py + text;
      # Types and names are those of the harness's machine, checked there.
      skipTypeCheck = true;
      skipLint = true;
    };
in
lib.listToAttrs (map (name: lib.nameValuePair "vm-${name}" (make name)) names)

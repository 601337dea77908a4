# SPDX-License-Identifier: MIT OR Apache-2.0
# Evaluates the module with the module system and the unit renderer of nixpkgs, for
# machines that have no nixpkgs: `library` is a copy of its lib, `nixos` one of its
# folder nixos/. Neither has all of NixOS, so that what the module touches of its
# neighbours is declared here, with their types. Gives what the tests look at, as JSON.
{
  library,
  nixos,
  # A folder of configurations, each a NixOS module.
  cases,
}:

let
  lib = import library;
  root = ../..;
  utils = import (nixos + "/lib/utils.nix") {
    inherit lib pkgs;
    config.systemd = {
      package = package "systemd";
      globalEnvironment = { };
    };
  };
  inherit (utils.systemdUtils.lib) serviceToUnit;
  unitTypes = utils.systemdUtils.types;

  # Looks like a derivation, and is where Debian has the same programs.
  package = name: {
    type = "derivation";
    inherit name;
    pname = name;
    outPath = "/usr";
    meta.mainProgram = name;
  };
  file =
    name: text:
    package name
    // {
      outPath = "/etc/${name}";
      inherit text;
    };

  pkgs = {
    inherit lib;
    stdenv.buildPlatform.canExecute = _: true;
    stdenv.hostPlatform = { };
    coccinelle = package "coccinelle";
    coreutils = package "coreutils";
    findutils = package "findutils";
    gnugrep = package "grep";
    gnused = package "sed";
    python3 = package "python3";
    vulkan-loader = package "vulkan-loader";
    # Packages of our own: they are named by their file.
    callPackage = path: _: package (lib.removeSuffix ".nix" (baseNameOf path));
    runCommandLocal =
      name: _: script:
      file name script;
    # The types of the real one; the text is made of `settings` by who reads the JSON.
    formats.toml = _: {
      type =
        let
          value =
            with lib.types;
            nullOr (oneOf [
              bool
              int
              float
              str
              path
              (attrsOf value)
              (listOf value)
            ])
            // {
              description = "TOML value";
            };
        in
        value;
      generate = name: _: file name "rendered";
    };
  };

  option =
    type: default:
    lib.mkOption {
      inherit type default;
    };
  neighbours =
    { config, ... }:
    let
      inherit (lib) types;
    in
    {
      imports = [ (nixos + "/modules/misc/assertions.nix") ];
      config.systemd.services = lib.mkIf config.services.ollama.enable {
        ollama.serviceConfig.ExecStart = "/usr/bin/ollama serve";
      };
      options = {
        boot = {
          kernelModules = option (types.listOf types.str) [ ];
          extraModulePackages = option (types.listOf types.package) [ ];
          extraModprobeConfig = option types.lines "";
          kernelPackages = option types.raw (kernelPackages "6.18.2");
          kernel.sysctl = option (types.attrsOf types.raw) { };
          resumeDevice = option types.str "";
          tmp.useTmpfs = option types.bool false;
          supportedFilesystems = option (types.listOf types.str) [ ];
        };
        environment.etc = option (types.attrsOf (
          types.submodule {
            options.source = lib.mkOption { type = types.raw; };
          }
        )) { };
        environment.systemPackages = option (types.listOf types.package) [ ];
        fileSystems = option (types.attrsOf (
          types.submodule (
            { name, ... }:
            {
              options = {
                mountPoint = option types.str name;
                device = option (types.nullOr types.str) null;
                fsType = option types.str "auto";
                options = option (types.listOf types.str) [ ];
              };
            }
          )
        )) { };
        hardware.graphics.enable = option types.bool false;
        hardware.nvidia = lib.mkOption {
          default = { };
          type = types.submodule {
            freeformType = types.attrsOf types.raw;
            options.enabled = option types.bool (lib.elem "nvidia" config.services.xserver.videoDrivers);
          };
        };
        nixpkgs.config = option (types.attrsOf types.raw) { };
        security.polkit.enable = option types.bool false;
        services.ollama.enable = option types.bool false;
        services.dbus.packages = option (types.listOf types.package) [ ];
        services.xserver.videoDrivers = option (types.listOf types.str) [ ];
        users.groups = option (types.attrsOf types.raw) { };
        swapDevices = option (types.listOf (
          types.submodule {
            options = {
              device = option types.str "";
              priority = option (types.nullOr types.int) null;
              size = option (types.nullOr types.int) null;
            };
          }
        )) [ ];
        systemd.packages = option (types.listOf types.package) [ ];
        systemd.services = option unitTypes.services { };
        zramSwap = {
          enable = option types.bool false;
          priority = option types.int 5;
          memoryPercent = option types.int 50;
        };
      };
    };

  # A driver's package, with what its open modules are built by.
  nvidiaDriver =
    version:
    package "nvidia-x11"
    // {
      inherit version;
      open = openModules {
        nativeBuildInputs = [ (package "pahole") ];
        postPatch = "true\n";
      };
    };
  openModules =
    attributes:
    package "nvidia-open"
    // attributes
    // {
      overrideAttrs = change: openModules (attributes // change attributes);
    };

  kernelPackages = version: {
    kernel = { inherit version; };
    kernelAtLeast = lib.versionAtLeast version;
    nvidiaPackages.stable = nvidiaDriver "595.84";
    nvidiaPackages.beta = nvidiaDriver "595.45.04";
    callPackage = path: _: package (lib.removeSuffix ".nix" (baseNameOf path));
  };

  evaluate =
    modules:
    lib.evalModules {
      modules = [
        neighbours
        (root + "/nixos-module")
        { _module.args = { inherit pkgs utils kernelPackages; }; }
      ]
      ++ modules;
    };

  result =
    modules:
    let
      inherit (evaluate modules) config;
      unit = name: service: {
        inherit (serviceToUnit name service)
          text
          wantedBy
          requiredBy
          overrideStrategy
          ;
      };
    in
    {
      failed = map (item: item.message) (lib.filter (item: !item.assertion) config.assertions);
      inherit (config) warnings;
      inherit (config.services.sluice) settings;
      # What is in a package is its place.
      etc = lib.mapAttrs (_: entry: entry.source.text or "-> ${entry.source}") config.environment.etc;
      units = lib.mapAttrs' (
        name: service: lib.nameValuePair "${name}.service" (unit name service)
      ) config.systemd.services;
      packages = {
        path = map (item: item.name) config.environment.systemPackages;
        units = map (item: item.name) config.systemd.packages;
        modules = map (item: item.name) config.boot.extraModulePackages;
        bus = map (item: item.name) config.services.dbus.packages;
      };
      polkit = config.security.polkit.enable;
      groups = lib.attrNames config.users.groups;
      modules = config.boot.kernelModules;
      modprobe = config.boot.extraModprobeConfig;
      # What the module makes of NVIDIA's driver; nothing if it leaves it alone.
      driver =
        let
          base = config.services.sluice.kernel.driver.package;
          inherit (config.hardware.nvidia.package) open;
        in
        if config.hardware.nvidia ? package then
          {
            inherit (open) postPatch postBuild;
            tools = map (item: item.name) open.nativeBuildInputs;
            # User space must be the same package as without the patches.
            isSame = removeAttrs config.hardware.nvidia.package [ "open" ] == removeAttrs base [ "open" ];
          }
        else
          null;
    };

  # Nothing of a refused configuration but its messages: the rest may not evaluate.
  messages =
    modules:
    let
      inherit ((evaluate modules).config) assertions;
      numbered = lib.imap0 (place: item: item // { inherit place; }) assertions;
    in
    {
      inherit (result modules) failed warnings;
      assertions = lib.length assertions;
      places = map (item: item.place) (lib.filter (item: !item.assertion) numbered);
    };

  namesIn =
    kind:
    map (lib.removeSuffix ".nix") (
      lib.filter (lib.hasSuffix ".nix") (lib.attrNames (builtins.readDir (cases + "/${kind}")))
    );
  over =
    kind: make: lib.genAttrs (namesIn kind) (name: make (import (cases + "/${kind}/${name}.nix")));

  # One wrong value each; whether it was taken.
  wrongTypes = import (cases + "/wrong-types.nix");
  taken =
    sluice:
    (builtins.tryEval (
      builtins.deepSeq (
        let
          evaluated = evaluate [
            {
              services.sluice = {
                enable = true;
                swap.size = lib.mkDefault "8G";
                tier.kind = lib.mkDefault "ram";
              }
              // sluice;
            }
          ];
        in
        [
          evaluated.config.services.sluice.settings
          (removeAttrs evaluated.config.services.sluice [
            "package"
            "policyPackage"
            "kernel"
          ])
        ]
      ) true
    )).success;

  documented = lib.filter (
    item: item.visible && !item.internal && lib.hasPrefix "services.sluice." item.name
  ) (lib.optionAttrSetToDocList (evaluate [ ]).options);
in
{
  examples = over "examples" (module: result [ module ]);
  refused = over "refused" (module: messages [ module ]);
  warned = over "warned" (module: messages [ module ]);
  wrongTypes = map (item: {
    inherit (item) why;
    taken = taken item.sluice;
  }) wrongTypes;
  options = map (item: {
    inherit (item) name type;
    description = item.description or null;
    readOnly = item.readOnly or false;
    default = item.default or null;
    example = item.example or null;
    declarations = map (place: lib.removePrefix "${toString root}/" (toString place)) item.declarations;
  }) documented;
}

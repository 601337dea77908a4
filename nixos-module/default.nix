# SPDX-License-Identifier: MIT OR Apache-2.0
# The module `services.sluice`. What is not here yet is added as a file of its own:
# options beside the configuration that they decide.
{
  imports = [
    ./options.nix
    ./store.nix
    ./policies.nix
    ./driver.nix
    ./control.nix
    ./desktop.nix
    ./tenants.nix
    ./assertions.nix
  ];
}

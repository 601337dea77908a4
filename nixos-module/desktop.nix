# SPDX-License-Identifier: MIT OR Apache-2.0
# The switch in the desktop's tray. Every session starts it by itself; where there is no
# tray, the application's actions do the same, and come with the package anyway.
{ config, lib, ... }:

let
  cfg = config.services.sluice;
in
{
  options.services.sluice.desktop.enable =
    lib.mkEnableOption "`sluice-tray` in every desktop session: what GPU memory is lent, a switch for it, and notifications when it fails or stops on battery";

  config = lib.mkIf (cfg.enable && cfg.desktop.enable) {
    environment.etc."xdg/autostart/sluice-tray.desktop".source =
      "${cfg.package}/share/applications/sluice-tray.desktop";
  };
}

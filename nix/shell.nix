# The development shell: Python with all locked packages, and what builds csrc/.
{ pkgs, packages }:
pkgs.mkShell {
  packages = [
    packages.dev-env
    pkgs.cmake
    pkgs.gcc
    pkgs.gnumake
    pkgs.ninja
    pkgs.shellcheck
  ];
}

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
  # the working tree before the dsv41 that the environment holds
  shellHook = ''
    export PYTHONPATH=$PWD/python
  '';
}

# The row store: the C++ core of csrc/ as the Python module dsv41_rows.
{
  lib,
  cmake,
  ninja,
  python3,
}:
let
  inherit (lib.importTOML ../../csrc/pyproject.toml) project;
in
python3.pkgs.buildPythonPackage {
  pname = project.name;
  inherit (project) version;
  pyproject = true;
  src = lib.fileset.toSource {
    root = ../../csrc;
    fileset = ../../csrc;
  };
  build-system = [
    python3.pkgs.pybind11
    python3.pkgs.scikit-build-core
  ];
  nativeBuildInputs = [
    cmake
    ninja
  ];
  # as one unit: its headers are then read once, which is half of the compiler's time. A type of
  # an anonymous namespace looks like one of a header then.
  env = {
    SKBUILD_CMAKE_DEFINE = "CMAKE_UNITY_BUILD=ON;CMAKE_UNITY_BUILD_BATCH_SIZE=0";
    CXXFLAGS = "-Wno-subobject-linkage";
  };
  # scikit-build-core calls cmake itself
  dontUseCmakeConfigure = true;
  pythonImportsCheck = [ "dsv41_rows" ];
  meta = {
    inherit (project) description;
    license = lib.licenses.asl20;
  };
}

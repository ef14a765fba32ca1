# The root of our images: Debian's packages, and what their maintainer scripts would make, which
# never run here.
{ packages }:
let
  link = to: target: {
    type = "link";
    inherit to target;
  };
  file = to: text: {
    type = "file";
    inherit to text;
  };
in
{
  inherit link file;

  # sources of the lowest layer
  root =
    lock:
    packages.debs {
      inherit lock;
      # the licenses in usr/share/doc stay
      exclude = [
        "usr/share/info"
        "usr/share/locale"
        "usr/share/man"
      ];
    }
    ++ [
      (link "bin" "usr/bin")
      (link "sbin" "usr/sbin")
      (link "lib" "usr/lib")
      (link "lib64" "usr/lib64")
      (file "etc/passwd" ''
        root:x:0:0:root:/root:/bin/sh
        nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
      '')
      (file "etc/group" ''
        root:x:0:
        nogroup:x:65534:
      '')
      {
        type = "dir";
        to = "cache";
        mode = "1777";
      }
    ];

  # a virtual environment: .pth files of site-packages count, and /usr's packages do not
  environment = prefix: [
    (link "${prefix}/bin/python" "/usr/bin/python3.11")
    (link "${prefix}/bin/python3" "python")
    (file "${prefix}/pyvenv.cfg" ''
      home = /usr/bin
      include-system-site-packages = false
      version = 3.11
    '')
  ];
}

// Stands in for the one file of NCCL that a patch touches.
#include <cstring>

extern "C" int connectTree(const char* request) {
  return static_cast<int>(strlen(request));
}

// CHECK(condition): a failed one says where and ends the program with 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (0)

// The call must throw a RowError of this kind.
#define CHECK_THROWS(wanted, call)                                                    \
  do {                                                                                \
    bool thrown = false;                                                              \
    try {                                                                             \
      call;                                                                           \
    } catch (const dsv41::RowError& error) {                                          \
      thrown = error.kind() == (wanted);                                              \
    }                                                                                 \
    CHECK(thrown && "throws the right kind: " #call);                                 \
  } while (0)

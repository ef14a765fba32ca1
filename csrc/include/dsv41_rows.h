// Engram rows through plain C: for an engine process that loads this library by ctypes or dlopen.
//
// Build it alone, with nothing but a C++17 compiler, in the folder csrc:
//
//   g++ -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -pthread -Iinclude src/*.cpp -o libdsv41_rows.so
//
// It needs no Python and no CUDA. dsv41_rows_submit, _wait and _lookup have the type of a CUDA host function
// (void (*)(void*)): they make no CUDA call, throw nothing and may run on a thread of the driver, so a captured graph can
// hold them as host nodes. What they work on is a dsv41_rows_work whose address stays the same while the graph lives.
//
//   captured:  copy ids to host -> host node submit(work) -> ... -> host node wait(work) -> copy rows to the device
//   eager:     lookup(work), which is submit and wait
//
// THREADS. Any number of threads, each with its own work; one work is used by one thread at a time. After fork() every
// submit, wait and lookup in the child fails with DSV41_ROWS_FORKED; the child opens the file again.
//
// ERRORS. Functions that return int return a dsv41_rows_status, and dsv41_rows_error() gives the sentence to the last
// one on the calling thread. The host functions leave theirs in work->status. A rank must not go on with wrong rows, and
// a host node can stop nobody: with `production` set they write one line of JSON to standard error and abort the process
//
//   {"event": "dsv41_rows_fatal", "kind": "corrupt", "layer": 1, "rank": 0, "says": "FILE: layer 1, row 7, ..."}
//
// The file format and what a lookup returns are described in dsv41_rows/row_store.hpp.
#ifndef DSV41_ROWS_H
#define DSV41_ROWS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSV41_ROWS_ABI 1
#define DSV41_ROWS_API __attribute__((visibility("default")))

enum dsv41_rows_status {
  DSV41_ROWS_PENDING = -1, /* submitted, not waited for yet */
  DSV41_ROWS_OK = 0,
  DSV41_ROWS_ARGUMENT = 1,    /* the caller passed something that cannot be */
  DSV41_ROWS_MISMATCH = 2,    /* the file is a good one, but not the one asked for */
  DSV41_ROWS_MALFORMED = 3,   /* not a row file, or not a safetensors file of the expected tensors */
  DSV41_ROWS_TRUNCATED = 4,   /* shorter than its own header says */
  DSV41_ROWS_UNFINISHED = 5,  /* the packer did not end */
  DSV41_ROWS_CORRUPT = 6,     /* a CRC or a digest does not hold */
  DSV41_ROWS_IO = 7,          /* the operating system refused a read or a write */
  DSV41_ROWS_RANGE = 8,       /* a row id beyond the table */
  DSV41_ROWS_UNSUPPORTED = 9, /* the engine asked for cannot work here */
  DSV41_ROWS_SPACE = 10,      /* the disk is full */
  DSV41_ROWS_BUSY = 11,       /* another packer holds the lock */
  DSV41_ROWS_CLOSED = 12,     /* the store was closed */
  DSV41_ROWS_FORKED = 13,     /* used in a child of the process that opened it */
  DSV41_ROWS_TIMEOUT = 14,    /* the rows were not there in time */
  DSV41_ROWS_INTERRUPTED = 15 /* the progress function asked to stop */
};

typedef struct dsv41_rows_store dsv41_rows_store;

/* What to open and how. Set size = sizeof(struct); zero and NULL mean the default. */
struct dsv41_rows_options {
  uint32_t size;
  uint32_t layer, rank, tp;   /* must be those of the file */
  const char* partition;      /* must be that of the file */
  const char* source_digest;  /* hex identity of the checkpoint; NULL = not checked */
  const char* revision;       /* NULL = not checked */
  const char* engine;         /* "auto", "uring", "aio", "pread"; NULL = auto */
  uint32_t threads, depth;    /* of pread; of uring and aio; 0 = 32 and 128 */
  uint64_t cache_bytes;       /* rows kept in memory; 0 = none */
  const uint64_t* order_bounds; /* first rows of n-gram orders 3, 4, ..; NULL = not counted by order */
  uint32_t order_bound_count;
  uint32_t production;        /* 1 = a failed lookup writes one line and aborts the process */
};

/* One lookup, used again and again. Set size = sizeof(struct) and zero the rest first. */
struct dsv41_rows_work {
  uint32_t size;
  uint32_t id_bytes;  /* 4 or 8: ids are int32 or int64 */
  dsv41_rows_store* store;
  const void* ids;    /* count global row ids; negative ones are padding */
  uint64_t count;
  uint8_t* weights;   /* [count][256], FP8 E4M3; zero for padding and for rows of other ranks */
  uint8_t* scales;    /* [count][8], UE8M0 */
  uint32_t* flag;     /* NULL, or: gets the low half of `generation` with a release store after the rows are there */
  int32_t status;     /* dsv41_rows_status of the last submit or wait */
  uint32_t reserved;
  uint64_t generation; /* lookups of this work that ended well */
  void* ticket;        /* private */
};

/* Called now and then during long work; anything but 0 ends it with DSV41_ROWS_INTERRUPTED. */
typedef int (*dsv41_rows_progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);

/* What to pack; see dsv41::PackOptions. `ranges` holds range_count triples lo, hi, base. */
struct dsv41_rows_pack_options {
  uint32_t size;
  uint32_t layer, rank, tp;
  const char* source;       /* the safetensors file, or NULL: rows come from `records_path` only */
  const char* target;
  const char* partition;
  const char* revision;     /* NULL = none */
  const char* records_path; /* NULL, or a file of 264-byte records, which are compared with `source` when both are given */
  uint64_t records_data_begin, records_first_row, records_end_row;
  uint64_t total_rows;
  const uint64_t* ranges;
  uint32_t range_count;
  uint32_t made;            /* 1 = rows made from their numbers, for measurements; then neither source nor records */
  uint64_t chunk_pages, journal_chunks; /* 0 = 2048 and 128 */
  dsv41_rows_progress progress;         /* or NULL */
  void* user;
};

DSV41_ROWS_API uint32_t dsv41_rows_abi(void); /* DSV41_ROWS_ABI of the library */
DSV41_ROWS_API const char* dsv41_rows_error(void);
DSV41_ROWS_API int dsv41_rows_engines(char** text); /* JSON list of the engines in this build, as auto tries them */
DSV41_ROWS_API const char* dsv41_rows_kind(int status); /* "corrupt" and so on */

DSV41_ROWS_API int dsv41_rows_open(const char* path, const struct dsv41_rows_options* options,
                                   dsv41_rows_store** store);
DSV41_ROWS_API void dsv41_rows_submit(void* work);
DSV41_ROWS_API void dsv41_rows_wait(void* work);
DSV41_ROWS_API void dsv41_rows_lookup(void* work);
/* Like wait, for at most so many seconds; DSV41_ROWS_TIMEOUT leaves the lookup going. Never aborts on a timeout. */
DSV41_ROWS_API int dsv41_rows_wait_for(struct dsv41_rows_work* work, double seconds);
/* Waits for the reads in flight. A work that was submitted may still be waited for, but not submitted again. */
DSV41_ROWS_API void dsv41_rows_close(dsv41_rows_store* store);

/* JSON texts, to be given back to dsv41_rows_free. */
DSV41_ROWS_API int dsv41_rows_stats(const dsv41_rows_store* store, char** text);
DSV41_ROWS_API int dsv41_rows_header(const dsv41_rows_store* store, char** text);
DSV41_ROWS_API int dsv41_rows_inspect(const char* path, char** text);
DSV41_ROWS_API int dsv41_rows_source(const char* safetensors, uint32_t layer, char** text);
DSV41_ROWS_API int dsv41_rows_verify(const char* path, dsv41_rows_progress progress, void* user, char** text);
DSV41_ROWS_API void dsv41_rows_free(char* text);

/* *packed: 1 = written, 0 = a complete equal file was there. */
DSV41_ROWS_API int dsv41_rows_pack(const struct dsv41_rows_pack_options* options, int* packed);

#ifdef __cplusplus
}
#endif
#endif

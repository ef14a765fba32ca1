// The C interface from C: packs, looks rows up, from the main thread, another thread or a forked child.
//
//   tool pack SOURCE TARGET LAYER RANK TP PARTITION TOTAL CHUNK_PAGES JOURNAL_CHUNKS LO,HI,BASE ...
//   tool MODE FILE LAYER RANK TP PARTITION ENGINE ID ...     MODE: lookup, production, thread, fork, narrow, tickets
//
// A lookup prints the 264 bytes of each row in hex, one a line, then the statistics; a failure prints
// "KIND: sentence" to standard error and exits with the status.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dsv41_rows.h"

#define MOST 4096

static int64_t ids[MOST];
static int32_t narrow_ids[MOST];
static uint8_t weights[MOST][256], scales[MOST][8];

static int failed(int status) {
  fprintf(stderr, "%s: %s\n", dsv41_rows_kind(status), dsv41_rows_error());
  return status;
}

static int pack(int count, char** text) {
  uint64_t ranges[3 * 24] = {0};
  struct dsv41_rows_pack_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.source = text[0];
  options.target = text[1];
  options.layer = (uint32_t)atoi(text[2]);
  options.rank = (uint32_t)atoi(text[3]);
  options.tp = (uint32_t)atoi(text[4]);
  options.partition = text[5];
  options.total_rows = (uint64_t)atoll(text[6]);
  options.chunk_pages = (uint64_t)atoll(text[7]);
  options.journal_chunks = (uint64_t)atoll(text[8]);
  options.ranges = ranges;
  options.range_count = (uint32_t)(count - 9);
  for (int i = 9; i < count && i < 33; ++i) {
    unsigned long long lo, hi, base;
    if (sscanf(text[i], "%llu,%llu,%llu", &lo, &hi, &base) != 3) return 99;
    ranges[3 * (i - 9)] = lo, ranges[3 * (i - 9) + 1] = hi, ranges[3 * (i - 9) + 2] = base;
  }
  int packed = 0;
  const int status = dsv41_rows_pack(&options, &packed);
  if (status != DSV41_ROWS_OK) return failed(status);
  puts(packed ? "packed" : "kept");
  return 0;
}

static void* look(void* work) {
  dsv41_rows_lookup(work);
  if (((struct dsv41_rows_work*)work)->status != DSV41_ROWS_OK) failed(((struct dsv41_rows_work*)work)->status);
  return NULL;
}

static void in_child(struct dsv41_rows_work* work) {
  struct dsv41_rows_work early = *work, late = *work;  // under way while the process forks
  dsv41_rows_submit(&early);
  dsv41_rows_submit(&late);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a wait that nobody ends is a failure
    dsv41_rows_wait(&early);
    if (early.status != DSV41_ROWS_FORKED || dsv41_rows_wait_for(&late, 1) != DSV41_ROWS_FORKED) _exit(96);
    look(work);
    dsv41_rows_close(work->store);
    _exit(work->status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  dsv41_rows_wait(&early);
  dsv41_rows_wait(&late);
  if (early.status != DSV41_ROWS_OK || late.status != DSV41_ROWS_OK) exit(95);
  look(work);
}

static void in_thread(struct dsv41_rows_work* work) {
  pthread_t thread;
  pthread_create(&thread, NULL, look, work);
  pthread_join(thread, NULL);
}

// Many lookups under way at once, waited for in the other order.
static void by_tickets(const struct dsv41_rows_work* work) {
  static struct dsv41_rows_work each[MOST];
  static uint32_t flag;
  for (uint64_t i = 0; i < work->count; ++i) {
    each[i] = *work;
    each[i].ids = &ids[i], each[i].count = 1;
    each[i].weights = weights[i], each[i].scales = scales[i];
    each[i].flag = &flag;
    dsv41_rows_submit(&each[i]);
    if (each[i].status != DSV41_ROWS_PENDING) exit(98);
  }
  for (uint64_t i = work->count; i-- > 0;) {
    flag = 0;
    dsv41_rows_wait(&each[i]);
    if (each[i].status != DSV41_ROWS_OK || each[i].generation != 1 || flag != 1) exit(97);
  }
}

static void run(const char* mode, struct dsv41_rows_work* work) {
  if (strcmp(mode, "fork") == 0) in_child(work);
  else if (strcmp(mode, "thread") == 0) in_thread(work);
  else if (strcmp(mode, "tickets") == 0) by_tickets(work), work->status = DSV41_ROWS_OK;
  else look(work);
}

static int lookup(const char* mode, int count, char** text) {
  struct dsv41_rows_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.layer = (uint32_t)atoi(text[1]);
  options.rank = (uint32_t)atoi(text[2]);
  options.tp = (uint32_t)atoi(text[3]);
  options.partition = text[4];
  options.engine = text[5];
  options.production = strcmp(mode, "production") == 0;
  struct dsv41_rows_work work;
  memset(&work, 0, sizeof work);
  const int status = dsv41_rows_open(text[0], &options, &work.store);
  if (status != DSV41_ROWS_OK) return failed(status);
  for (int i = 6; i < count && i - 6 < MOST; ++i) narrow_ids[i - 6] = (int32_t)(ids[i - 6] = atoll(text[i]));
  const int narrow = strcmp(mode, "narrow") == 0;
  work.size = sizeof work;
  work.id_bytes = narrow ? 4 : 8;
  work.ids = narrow ? (const void*)narrow_ids : (const void*)ids;
  work.count = (uint64_t)(count - 6);
  work.weights = weights[0], work.scales = scales[0];
  run(mode, &work);
  for (uint64_t i = 0; work.status == DSV41_ROWS_OK && i < work.count; ++i) {
    for (int b = 0; b < 264; ++b) printf("%02x", b < 256 ? weights[i][b] : scales[i][b - 256]);
    puts("");
  }
  char* json = NULL;
  if (dsv41_rows_stats(work.store, &json) == DSV41_ROWS_OK) puts(json);
  dsv41_rows_free(json);
  dsv41_rows_close(work.store);
  return work.status;
}

int main(int count, char** text) {
  if (count >= 11 && strcmp(text[1], "pack") == 0) return pack(count - 2, text + 2);
  return count >= 8 ? lookup(text[1], count - 2, text + 2) : 99;
}

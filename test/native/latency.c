/* How long a commit takes: latency ENGINE COUNT WRITES.
 *
 * WRITES 0 times the commit alone, 1 the whole of writing, checking and committing. Prints
 * nanoseconds, one line for each commit. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "flashrt_slots.h"

static int64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void require(bool is_fine, const flashrt_error *error)
{
  if (!is_fine) {
    fprintf(stderr, "%s: %s\n", flashrt_code_name(error->code), error->message);
    exit(1);
  }
}

int main(int argc, char **argv)
{
  flashrt_client *client;
  flashrt_writer *writer;
  flashrt_error error = {0, ""};
  if (argc != 4)
    return 2;
  int count = atoi(argv[2]);
  bool writes = atoi(argv[3]) != 0;
  unsigned flags = writes ? 0 : FLASHRT_UNCHECKED;
  int64_t *times = calloc((size_t)count, sizeof *times);
  require(!flashrt_connect(argv[1], "latency", 10000, 10000, &client, &error), &error);
  require(!flashrt_open_writer(client, "goal", 0, &writer, &error), &error);
  const flashrt_channel *channel = flashrt_get_channel(writer);
  float *payload = calloc(1, channel->slot_bytes);
  for (int i = 0; i < count; i++) {
    int64_t started_ns = writes ? now_ns() : 0;
    for (uint32_t k = 0; k < channel->num_fields; k++) {
      const flashrt_field_info *field = &channel->fields[k];
      void *at = flashrt_field(writer, field->name, field->dtype, field->num_items, &error);
      require(at != NULL, &error);
      memcpy(at, payload, field->num_bytes);
    }
    if (!writes)
      started_ns = now_ns();
    require(!flashrt_commit(writer, i, (uint64_t)i, flags, NULL, &error), &error);
    times[i] = now_ns() - started_ns;
  }
  for (int i = 0; i < count; i++)
    printf("%lld\n", (long long)times[i]);
  flashrt_close(client);
  free(payload);
  free(times);
  return 0;
}

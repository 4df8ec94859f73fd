/* A client that does what its standard input says, a line at a time, and answers each with a line:
 * "OK ..." or the name of an error and its message. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "flashrt_slots.h"

static flashrt_client *client;
static flashrt_writer *writer;
static flashrt_output output;
static flashrt_error error;

static void answer(int code)
{
  if (code > 0)
    printf("%s %s\n", flashrt_code_name(code), error.message);
  else
    printf("%s\n", flashrt_code_name(code));
}

static void say_model(void)
{
  const flashrt_model *model = flashrt_get_model(client);
  printf("OK %llu %s %u %u %u %u %lld", (unsigned long long)flashrt_engine_epoch(client),
         model->name, model->horizon, model->action_dim, model->execute_horizon,
         model->num_environments, (long long)model->step_ns);
  for (uint32_t i = 0; i < model->num_joints; i++)
    printf(" %s", model->joint_names[i]);
  printf(" %s\n", model->fingerprint);
}

static void open_channel(const char *channel, unsigned env_index)
{
  int code = flashrt_open_writer(client, channel, env_index, &writer, &error);
  if (code) {
    answer(code);
    return;
  }
  const flashrt_channel *opened = flashrt_get_channel(writer);
  printf("OK %s %s %s %llu %u %llu %llu", opened->name, opened->role, opened->frame,
         (unsigned long long)opened->slot_bytes, opened->num_ring_slots,
         (unsigned long long)opened->inode, (unsigned long long)opened->device);
  for (uint32_t i = 0; i < opened->num_fields; i++) {
    const flashrt_field_info *field = &opened->fields[i];
    printf(" %s:%d:%llu:%llu:%g:%g:%s", field->name, (int)field->dtype,
           (unsigned long long)field->num_items, (unsigned long long)field->offset, field->low,
           field->high, field->units);
  }
  printf("\n");
}

/* Write every item of a field, the given values over and over. */
static void set(const char *name, char *values)
{
  const flashrt_channel *channel = flashrt_get_channel(writer);
  float given[16];
  size_t num_given = 0;
  uint64_t num_items = 0;
  for (char *word = strtok(values, " "); word && num_given < 16; word = strtok(NULL, " "))
    given[num_given++] = strtof(word, NULL);
  for (uint32_t i = 0; i < channel->num_fields; i++)
    if (!strcmp(channel->fields[i].name, name))
      num_items = channel->fields[i].num_items;
  float *at = flashrt_field(writer, name, FLASHRT_FLOAT32, num_items, &error);
  if (!at) {
    answer(error.code);
    return;
  }
  for (uint64_t i = 0; i < num_items; i++)
    at[i] = given[i % num_given];
  answer(FLASHRT_OK);
}

/* Commit as fast as it goes; each payload is one number throughout. A scribbler goes on writing
 * into the slot that it has handed over. */
static void flood(unsigned count, bool scribbles)
{
  uint64_t sequence = 0;
  float *at = NULL;
  const flashrt_channel *channel = flashrt_get_channel(writer);
  for (unsigned i = 1; i <= count;) {
    int code = flashrt_loan(writer, &error);
    for (uint32_t k = 0; !code && k < channel->num_fields; k++) {
      const flashrt_field_info *field = &channel->fields[k];
      at = flashrt_field(writer, field->name, field->dtype, field->num_items, &error);
      for (uint64_t j = 0; j < field->num_items; j++)
        at[j] = (float)(i % 64) / 64;
    }
    if (!code)
      code = flashrt_commit(writer, 1000 + i, i, 0, &sequence, &error);
    if (code == FLASHRT_NO_FREE_SLOT)
      continue;
    if (code) {
      answer(code);
      return;
    }
    if (scribbles)
      at[0] = -1;
    i++;
  }
  printf("OK %llu\n", (unsigned long long)sequence);
}

static void read_output(int timeout_ms)
{
  int code = flashrt_read(client, &output, timeout_ms, &error);
  if (code) {
    answer(code);
    return;
  }
  printf("OK %d %u %d %llu %llu %lld %llu %lld %llu", (int)output.kind, output.index, output.slot,
         (unsigned long long)output.goal_sequence,
         (unsigned long long)output.goal_source_sequence, (long long)output.goal_stamp_ns,
         (unsigned long long)output.generation, (long long)output.tick,
         (unsigned long long)output.engine_epoch);
  for (uint32_t i = 0; i < output.num_values; i++)
    printf(" %.9g", (double)output.values[i]);
  printf("\n");
}

/* Call everything that needs the connection; returns the first code that is another one. */
static int call_all(int wanted)
{
  uint64_t sequence = 0;
  int codes[] = {
      flashrt_ping(client, &error),
      flashrt_loan(writer, &error),
      flashrt_field(writer, "values", FLASHRT_FLOAT32, 2, &error) ? FLASHRT_OK : error.code,
      flashrt_check(writer, &error),
      flashrt_commit(writer, 1, 1, 0, &sequence, &error),
      flashrt_return_loan(writer, &error),
      flashrt_release(client, &output, &error),
      flashrt_read(client, &output, 0, &error),
  };
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (codes[i] != wanted)
      return codes[i];
  return wanted;
}

/* Open a channel with every descriptor taken. */
static void open_without_descriptors(const char *channel)
{
  int taken[1024], count = 0;
  struct rlimit limit = {sizeof taken / sizeof *taken, sizeof taken / sizeof *taken};
  setrlimit(RLIMIT_NOFILE, &limit);
  while ((taken[count] = dup(0)) >= 0)
    count++;
  answer(flashrt_open_writer(client, channel, 0, &writer, &error));
  while (count--)
    close(taken[count]);
}

static void call_all_in_child(void)
{
  int status = 0;
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    answer(call_all(FLASHRT_ENGINE_GONE));
    fflush(stdout);
    flashrt_close_writer(writer);
    flashrt_close(client);
    _exit(0);
  }
  if (waitpid(child, &status, 0) != child || status)
    printf("the child ended with status %d\n", status);
}

static void obey(char *line)
{
  char word[32] = "", name[64] = "";
  long long a = 0, b = 0, c = 0;
  int used = 0;
  sscanf(line, "%31s%n", word, &used);
  char *rest = line + used;
  if (!strcmp(word, "model")) {
    say_model();
  } else if (!strcmp(word, "open")) {
    sscanf(rest, "%63s %lld", name, &a);
    open_channel(name, (unsigned)a);
  } else if (!strcmp(word, "set")) {
    sscanf(rest, "%63s%n", name, &used);
    set(name, rest + used);
  } else if (!strcmp(word, "field")) { /* name dtype items */
    sscanf(rest, "%63s %lld %lld", name, &a, &b);
    answer(flashrt_field(writer, name, (flashrt_dtype)a, (uint64_t)b, &error) ? FLASHRT_OK
                                                                              : error.code);
  } else if (!strcmp(word, "loan")) {
    answer(flashrt_loan(writer, &error));
  } else if (!strcmp(word, "check")) {
    answer(flashrt_check(writer, &error));
  } else if (!strcmp(word, "commit")) { /* stamp source_sequence flags */
    uint64_t sequence = 0;
    sscanf(rest, "%lld %lld %lld", &a, &b, &c);
    int code = flashrt_commit(writer, a, (uint64_t)b, (unsigned)c, &sequence, &error);
    if (code)
      answer(code);
    else
      printf("OK %llu\n", (unsigned long long)sequence);
  } else if (!strcmp(word, "lifetime")) {
    sscanf(rest, "%lld", &a);
    answer(flashrt_set_lifetime(writer, a, &error));
  } else if (!strcmp(word, "busy_poll")) {
    sscanf(rest, "%lld", &a);
    answer(flashrt_set_busy_poll(client, a, &error));
  } else if (!strcmp(word, "expires")) { /* of the goal of what was read last */
    printf("OK %lld\n", (long long)output.goal_expires_ns);
  } else if (!strcmp(word, "return")) {
    answer(flashrt_return_loan(writer, &error));
  } else if (!strcmp(word, "close")) {
    flashrt_close_writer(writer);
    answer(FLASHRT_OK);
  } else if (!strcmp(word, "flood")) {
    sscanf(rest, "%lld %lld", &a, &b);
    flood((unsigned)a, b != 0);
  } else if (!strcmp(word, "subscribe")) { /* environment actions chunks */
    sscanf(rest, "%lld %lld %lld", &a, &b, &c);
    answer(flashrt_subscribe(client, (uint32_t)a, b != 0, c != 0, &error));
  } else if (!strcmp(word, "read")) {
    sscanf(rest, "%lld", &a);
    read_output((int)a);
  } else if (!strcmp(word, "release")) {
    answer(flashrt_release(client, &output, &error));
  } else if (!strcmp(word, "ping")) {
    answer(flashrt_ping(client, &error));
  } else if (!strcmp(word, "starve")) { /* channel */
    sscanf(rest, "%63s", name);
    open_without_descriptors(name);
  } else if (!strcmp(word, "fork")) {
    call_all_in_child();
  } else {
    printf("unknown command\n");
  }
}

/* talk path NAME...: print where engines' sockets lie.
 * talk ENGINE TIMEOUT_MS WAIT_MS: connect, then obey. */
int main(int argc, char **argv)
{
  static char line[4096];
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1 && !strcmp(argv[1], "path")) {
    for (int i = 2; i < argc; i++) {
      int code = flashrt_socket_path(argv[i], line, sizeof line, &error);
      if (code)
        answer(code);
      else
        printf("%s\n", line);
    }
    return 0;
  }
  if (argc != 4)
    return 2;
  int code = flashrt_connect(argv[1], "talk", atoi(argv[2]), atoi(argv[3]), &client, &error);
  answer(code);
  while (!code && fgets(line, sizeof line, stdin))
    obey(line);
  flashrt_close(client);
  return 0;
}

/* The client against an engine that lies: every reply waits in the socket, most are damaged.
 *
 * feed REPLIES ITERATIONS SEED: REPLIES holds genuine replies to the calls of run(), each behind
 * its length in four bytes, big-endian. Prints how often each call was answered with OK. Stands in
 * for flashrt_address.c, so that no engine and no waiting is needed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "flashrt_internal.h"

enum { NUM_REPLIES = 12, NUM_CALLS = 10 };

static uint8_t replies[NUM_REPLIES][4096];
static size_t lengths[NUM_REPLIES];
static unsigned long long passed[NUM_CALLS];
static uint64_t seed;
static volatile double seen; /* so that no look at a payload is left out */

static uint32_t draw(uint32_t below)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % below;
}

/* Damage a reply in place; returns its new length. */
static size_t damage(uint8_t *data, size_t length, size_t room)
{
  static const uint8_t heads[] = {0x00, 0x7f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6,
                                  0xc7, 0xca, 0xcb, 0xcc, 0xcf, 0xd0, 0xd3, 0xd4, 0xd9, 0xdb,
                                  0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff};
  for (uint32_t times = 1 + draw(3); times; times--) {
    size_t at = length ? draw((uint32_t)length) : 0;
    size_t count = draw(9);
    switch (draw(7)) {
    case 0:
      data[at] ^= (uint8_t)(1u << draw(8));
      break;
    case 1:
      data[at] = heads[draw(sizeof heads)];
      break;
    case 2: /* a number that is as large as can be, or any */
      for (size_t i = 0; i < count && at + i < length; i++)
        data[at + i] = draw(2) ? 0xff : (uint8_t)draw(256);
      break;
    case 3:
      length = at;
      break;
    case 4: /* some bytes too few */
      count = count < length - at ? count : length - at;
      memmove(data + at, data + at + count, length - at - count);
      length -= count;
      break;
    case 5: /* some too many */
      count = count < room - length ? count : room - length;
      memmove(data + at + count, data + at, length - at);
      length += count;
      break;
    default: /* a long list, or text, where something short was */
      if (at + 5 <= length) {
        data[at] = draw(2) ? 0xdd : 0xdb;
        data[at + 1] = draw(2) ? 0 : (uint8_t)draw(256);
      }
    }
  }
  return length;
}

static int make_memory(void)
{
  int fd = memfd_create("feed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  off_t size = draw(8) ? 1 << 16 : draw(1 << 14);
  if (ftruncate(fd, size))
    abort();
  if (draw(8))
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

static void deliver(int fd, const uint8_t *data, size_t length, int num_fds)
{
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(3 * sizeof(int))];
  } control;
  int fds[3];
  struct iovec buffer = {(void *)(uintptr_t)data, length};
  struct msghdr head = {.msg_iov = &buffer, .msg_iovlen = 1};
  if (num_fds) {
    memset(&control, 0, sizeof control);
    head.msg_control = &control;
    head.msg_controllen = CMSG_SPACE((size_t)num_fds * sizeof(int));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN((size_t)num_fds * sizeof(int));
    for (int i = 0; i < num_fds; i++)
      fds[i] = make_memory();
    memcpy(CMSG_DATA(&control.header), fds, (size_t)num_fds * sizeof(int));
  }
  if (sendmsg(fd, &head, MSG_NOSIGNAL) < 0)
    abort();
  for (int i = 0; i < num_fds; i++)
    close(fds[i]);
}

/* in the place of flashrt_address.c ----------------------------------------------------------- */

int64_t fr_now_ms(void)
{
  return 0;
}

int fr_left_ms(int64_t expires_ms)
{
  (void)expires_ms;
  return 0; /* whatever comes is there already */
}

static int engine_end;

int fr_dial(const char *engine, int wait_ms, int *fd, flashrt_error *error)
{
  int ends[2];
  (void)engine, (void)wait_ms, (void)error;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
    abort();
  *fd = ends[0];
  engine_end = ends[1];
  /* One reply in three is damaged; sometimes none is, or they come in another order. */
  uint32_t odds = draw(4) ? 3 : 1000;
  for (uint32_t i = 0; i < NUM_REPLIES; i++) {
    uint8_t data[4200];
    uint32_t which = draw(200) ? i : draw(NUM_REPLIES);
    size_t length = lengths[which];
    int num_fds = which == 1 || which == 4; /* WriterOpened, Subscribed */
    memcpy(data, replies[which], length);
    if (!draw(odds))
      length = damage(data, length, sizeof data);
    if (!draw(50))
      num_fds = (int)draw(4);
    deliver(engine_end, data, length, num_fds);
  }
  if (!draw(3))
    shutdown(engine_end, SHUT_WR);
  return FLASHRT_OK;
}

/* what a client does -------------------------------------------------------------------------- */

static bool count(int call, int code)
{
  passed[call] += code == FLASHRT_OK;
  return code == FLASHRT_OK;
}

/* Look at everything that came, as a caller might. */
static double look(const flashrt_output *output)
{
  double sum = (double)strlen(output->capsule_id);
  for (uint32_t i = 0; i < output->num_values; i++)
    sum += (double)output->values[i];
  return sum;
}

static double run(void)
{
  flashrt_client *client;
  flashrt_writer *writer;
  flashrt_output output;
  flashrt_error error;
  double sum = 0;
  if (count(0, flashrt_connect("lies", "feed", 1000, 0, &client, &error))) {
    const flashrt_model *model = flashrt_get_model(client);
    for (uint32_t i = 0; i < model->num_joints; i++)
      sum += (double)strlen(model->joint_names[i]);
    sum += (double)strlen(model->name) + (double)strlen(model->fingerprint);
    if (count(1, flashrt_open_writer(client, "goal", 0, &writer, &error))) {
      const flashrt_channel *channel = flashrt_get_channel(writer);
      int code = flashrt_loan(writer, &error);
      count(2, code);
      for (uint32_t i = 0; i < channel->num_fields && !code; i++) {
        const flashrt_field_info *field = &channel->fields[i];
        void *at = flashrt_field(writer, field->name, field->dtype, field->num_items, &error);
        sum += (double)strlen(field->name) + (double)strlen(field->units);
        if (at)
          memset(at, 0, field->num_bytes);
      }
      count(3, flashrt_commit(writer, 1, 2, 0, NULL, &error));
    }
    count(4, flashrt_subscribe(client, 0, true, true, &error));
    for (int i = 0; i < 2; i++)
      if (count(5 + i, flashrt_read(client, &output, 0, &error))) {
        sum += look(&output);
        count(7, flashrt_release(client, &output, &error));
      }
    count(8, flashrt_ping(client, &error));
    count(9, flashrt_read(client, &output, 0, &error));
    sum += (double)strlen(error.message);
    flashrt_close(client);
  }
  close(engine_end);
  return sum;
}

static unsigned num_open(void)
{
  unsigned found = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (readdir(folder))
    found++;
  closedir(folder);
  return found;
}

int main(int argc, char **argv)
{
  FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
  uint8_t head[4];
  if (!file)
    return 2;
  for (unsigned i = 0; i < NUM_REPLIES; i++) {
    if (fread(head, 1, 4, file) != 4)
      return 2;
    lengths[i] = (size_t)head[2] << 8 | head[3];
    if (lengths[i] > sizeof replies[i] || fread(replies[i], 1, lengths[i], file) != lengths[i])
      return 2;
  }
  fclose(file);
  seed = strtoull(argv[3], NULL, 10);
  unsigned before = num_open();
  for (long i = atol(argv[2]); i; i--)
    seen += run();
  for (int i = 0; i < NUM_CALLS; i++)
    printf("%llu ", passed[i]);
  printf("%d\n", (int)num_open() - (int)before);
  return 0;
}

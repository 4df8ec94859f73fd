/* A connection to an engine: requests and their replies in step, outputs kept aside. */
#define _GNU_SOURCE
#include "flashrt_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* the end of a connection --------------------------------------------------------------------- */

static void finish(flashrt_client *client, const flashrt_error *why)
{
  if (!client->ended.code)
    client->ended = *why;
  /* So that what was lent goes back now, not when the caller gets to closing. */
  shutdown(client->fd, SHUT_RDWR);
}

int fr_end(flashrt_client *client, flashrt_error *error, int code, const char *format, ...)
{
  flashrt_error why = {code, ""};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why.message, sizeof why.message, format, arguments);
  va_end(arguments);
  finish(client, &why);
  if (error)
    *error = why;
  return code;
}

static int end_with_errno(flashrt_client *client, flashrt_error *error, int number)
{
  return fr_end(client, error, FLASHRT_ENGINE_GONE,
                "the connection to engine '%s' has ended: found %s", client->engine,
                number ? strerror(number) : "the engine closed it");
}

int fr_require(const flashrt_client *client, flashrt_error *error)
{
  if (getpid() != client->process_id)
    return fr_fail(error, FLASHRT_ENGINE_GONE,
                   "the connection to engine '%s' belongs to the parent process", client->engine);
  if (client->ended.code)
    return fr_fail(error, FLASHRT_ENGINE_GONE, "the connection to engine '%.64s' has ended: %.900s",
                   client->engine, client->ended.message);
  return FLASHRT_OK;
}

/* messages ------------------------------------------------------------------------------------ */

/* Take a Failure apart, standing behind its rid. */
static int read_failure(fr_reader *message, flashrt_error *error)
{
  uint64_t code = fr_read_u64(message, UINT64_MAX);
  fr_bytes text = fr_read_text(message);
  if (message->is_bad || !code || code > UINT16_MAX)
    return fr_fail(error, FLASHRT_INTERNAL, "the engine refused with no code that is one");
  return fr_fail_text(error, (int)code, text);
}

/* Receive a message that is there, well-formed and starting with its number.
 * Returns FLASHRT_NOTHING if none is. A descriptor is taken where `fd` is not NULL. */
static int take(flashrt_client *client, fr_reader *message, uint64_t *tag, int *fd,
                flashrt_error *error)
{
  /* Aligned for the header; the padding would hold a second descriptor, which is one too many. */
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec buffer = {client->incoming, sizeof client->incoming};
  struct msghdr head = {.msg_iov = &buffer, .msg_iovlen = 1};
  int num_fds = 0, received = -1;
  if (fd) {
    head.msg_control = &control;
    head.msg_controllen = sizeof control;
  }
  ssize_t length = recvmsg(client->fd, &head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (length < 0)
    return errno == EAGAIN || errno == EINTR ? FLASHRT_NOTHING
                                             : end_with_errno(client, error, errno);
  for (struct cmsghdr *at = CMSG_FIRSTHDR(&head); at; at = CMSG_NXTHDR(&head, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
      continue;
    for (size_t i = 0; i + CMSG_LEN(sizeof(int)) <= at->cmsg_len; i += sizeof(int)) {
      if (received >= 0)
        close(received);
      memcpy(&received, CMSG_DATA(at) + i, sizeof received);
      num_fds++;
    }
  }
  *message = (fr_reader){client->incoming, client->incoming + length, false};
  bool fits = !(head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && num_fds <= 1;
  if (fits && length && fr_is_whole(client->incoming, (size_t)length)) {
    fr_read_array(message, 1);
    *tag = fr_read_u64(message, UINT64_MAX);
    if (!message->is_bad) {
      if (fd)
        *fd = received;
      return FLASHRT_OK;
    }
  }
  if (received >= 0)
    close(received);
  if (!length && fits)
    return end_with_errno(client, error, 0);
  if (fd && !num_fds && (head.msg_flags & MSG_CTRUNC))
    return fr_end(client, error, FLASHRT_SHARED_MEMORY,
                  "engine '%s' sent memory that could not be taken: expected a free descriptor; "
                  "raise the limit of open files",
                  client->engine);
  return fr_end(client, error, FLASHRT_PROTOCOL, "a message of engine '%s' %s", client->engine,
                fits ? "could not be decoded" : "did not fit");
}

/* What the engine said before it hung up explains more than the hanging up. */
static bool last_failure(flashrt_client *client, flashrt_error *failure)
{
  fr_reader message;
  uint64_t tag;
  for (int turn = 0; turn < 1024; turn++) {
    ssize_t length = recv(client->fd, client->incoming, sizeof client->incoming, MSG_DONTWAIT);
    if (length <= 0)
      return false;
    if (!fr_is_whole(client->incoming, (size_t)length))
      continue;
    message = (fr_reader){client->incoming, client->incoming + length, false};
    fr_read_array(&message, 2);
    tag = fr_read_u64(&message, UINT64_MAX);
    fr_read_u64(&message, UINT64_MAX);
    if (tag == FR_FAILURE && !message.is_bad) {
      read_failure(&message, failure);
      return true;
    }
  }
  return false;
}

static int64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wait for an answer: look for it for a while, then sleep. */
static bool await(const flashrt_client *client, int64_t expires_ms)
{
  struct pollfd wanted = {client->fd, POLLIN, 0};
  if (client->busy_poll_ns)
    for (int64_t until_ns = now_ns() + client->busy_poll_ns; now_ns() < until_ns;)
      if (poll(&wanted, 1, 0) > 0)
        return true;
  return fr_wait(client, POLLIN, expires_ms);
}

bool fr_wait(const flashrt_client *client, short events, int64_t expires_ms)
{
  struct pollfd wanted = {client->fd, events, 0};
  for (;;) {
    int left_ms = fr_left_ms(expires_ms);
    int found = poll(&wanted, 1, left_ms);
    if (found > 0)
      return true;
    if (!left_ms || (found < 0 && errno != EINTR))
      return false;
  }
}

fr_writer fr_begin(flashrt_client *client, enum fr_tag tag, uint8_t count)
{
  uint8_t *start = client->request;
  fr_writer writer = {start, start, start + sizeof client->request, false};
  fr_write_array(&writer, (uint8_t)(count + (tag == FR_RELEASE ? 1 : 2)));
  fr_write_u64(&writer, tag);
  if (tag != FR_RELEASE) /* has no reply, so no rid */
    fr_write_u64(&writer, ++client->rid);
  return writer;
}

int fr_send(flashrt_client *client, const fr_writer *request, int64_t expires_ms,
            flashrt_error *error)
{
  size_t length = (size_t)(request->at - request->start);
  flashrt_error failure;
  if (request->is_full)
    return fr_fail(error, FLASHRT_PROTOCOL,
                   "a request does not fit a message: expected at most %d bytes",
                   FR_MAX_REQUEST_BYTES);
  while (send(client->fd, request->start, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    int number = errno;
    if (number == EINTR)
      continue;
    if (number == EAGAIN) {
      if (fr_wait(client, POLLOUT, expires_ms))
        continue;
      return fr_end(client, error, FLASHRT_ENGINE_GONE,
                    "engine '%s' takes no messages; see its log", client->engine);
    }
    if (!last_failure(client, &failure))
      return end_with_errno(client, error, number);
    finish(client, &failure);
    return fr_fail(error, failure.code, "%s", failure.message);
  }
  return FLASHRT_OK;
}

/* Judge a message that is not the reply waited for: keep an output, end the connection else.
 * Credits allow one output of a kind, so no caller is held up by outputs alone. */
static int set_aside(flashrt_client *client, fr_reader *message, uint64_t tag, flashrt_error *error)
{
  flashrt_error failure;
  if (tag == FR_OUTPUT && fr_keep_output(client, message))
    return FLASHRT_OK;
  if (tag == FR_FAILURE) {
    fr_read_u64(message, UINT64_MAX);
    read_failure(message, &failure);
    finish(client, &failure);
    return fr_fail(error, failure.code, "%s", failure.message);
  }
  return fr_end(client, error, FLASHRT_PROTOCOL,
                "engine '%s' answered out of step: expected the reply to request %llu, found "
                "message %llu",
                client->engine, (unsigned long long)client->rid, (unsigned long long)tag);
}

int fr_exchange(flashrt_client *client, const fr_writer *request, enum fr_tag tag,
                fr_reader *reply, int *fd, flashrt_error *error)
{
  int64_t expires_ms = fr_now_ms() + client->timeout_ms;
  int code = fr_require(client, error), received = -1;
  if (!code)
    code = fr_send(client, request, expires_ms, error);
  while (!code) {
    uint64_t found;
    if (!await(client, expires_ms))
      return fr_end(client, error, FLASHRT_ENGINE_GONE,
                    "engine '%s' did not answer: expected an answer within %d ms; see its log; the "
                    "connection is given up",
                    client->engine, client->timeout_ms);
    code = take(client, reply, &found, fd ? &received : NULL, error);
    if (code == FLASHRT_NOTHING) {
      code = FLASHRT_OK;
      continue;
    }
    if (code)
      break;
    if (found == tag || found == FR_FAILURE) {
      fr_reader behind = *reply;
      if (fr_read_u64(&behind, UINT64_MAX) == client->rid && !behind.is_bad) {
        *reply = behind;
        if (found == tag) {
          if (fd)
            *fd = received;
          return FLASHRT_OK;
        }
        code = read_failure(reply, error);
        break;
      }
    }
    code = set_aside(client, reply, found, error);
    if (!code && received >= 0)
      code = fr_end(client, error, FLASHRT_PROTOCOL, "engine '%s' sent memory with an output",
                    client->engine);
  }
  if (received >= 0)
    close(received);
  return code;
}

int flashrt_set_busy_poll(flashrt_client *client, int64_t busy_poll_us, flashrt_error *error)
{
  if (busy_poll_us < 0 || busy_poll_us > 10000000)
    return fr_fail(error, FLASHRT_CONFIG,
                   "a call can't look for its answer for so long: expected 0 to 10000000 us, "
                   "found %lld",
                   (long long)busy_poll_us);
  client->busy_poll_ns = busy_poll_us * 1000;
  return FLASHRT_OK;
}

int fr_receive_output(flashrt_client *client, flashrt_error *error)
{
  fr_reader message;
  uint64_t tag;
  int code = take(client, &message, &tag, NULL, error);
  return code ? code : set_aside(client, &message, tag, error);
}

/* opening and closing ------------------------------------------------------------------------- */

static bool read_model(flashrt_client *client, fr_reader *message)
{
  flashrt_model *model = &client->model;
  uint64_t more = fr_read_array(message, 11);
  model->name = fr_keep(&client->pool, fr_read_text(message));
  model->horizon = fr_read_u32(message);
  model->action_dim = fr_read_u32(message);
  model->execute_horizon = fr_read_u32(message);
  model->num_joints = fr_read_list(message, 1);
  client->joint_names = calloc(model->num_joints + 1u, sizeof *client->joint_names);
  if (!client->joint_names)
    return false;
  for (uint32_t i = 0; i < model->num_joints; i++)
    client->joint_names[i] = fr_keep(&client->pool, fr_read_text(message));
  model->joint_names = client->joint_names;
  model->step_ns = fr_read_i64(message);
  fr_skip(message, fr_read_list(message, 1)); /* channels: a writer gets its own with its ring */
  model->fingerprint = fr_keep(&client->pool, fr_read_text(message));
  model->num_environments = fr_read_u32(message);
  fr_skip(message, 2 + more);
  /* Its bytes have to fit what an output slot can hold, and lengths must not run over. */
  return !message->is_bad &&
         (uint64_t)model->horizon * model->action_dim <= UINT32_MAX / sizeof(float);
}

static int shake_hands(flashrt_client *client, const char *name, flashrt_error *error)
{
  fr_reader reply;
  fr_writer hello = fr_begin(client, FR_HELLO, 3);
  fr_write_u64(&hello, FLASHRT_WIRE_VERSION);
  fr_write_text(&hello, name);
  fr_write_u64(&hello, (uint64_t)client->process_id);
  int code = fr_exchange(client, &hello, FR_WELCOME, &reply, NULL, error);
  if (code)
    return code;
  uint64_t version = fr_read_u64(&reply, UINT64_MAX);
  if (!reply.is_bad && version != FLASHRT_WIRE_VERSION)
    return fr_end(client, error, FLASHRT_PROTOCOL_VERSION,
                  "engine '%s' speaks another version of the protocol: expected %d, found %llu",
                  client->engine, FLASHRT_WIRE_VERSION, (unsigned long long)version);
  fr_read_text(&reply);
  client->engine_epoch = fr_read_u64(&reply, UINT64_MAX);
  if (!fr_make_pool(&client->pool, (size_t)(reply.end - reply.at)))
    return fr_fail(error, FLASHRT_INTERNAL, "no memory is left");
  if (!read_model(client, &reply))
    return fr_end(client, error, FLASHRT_PROTOCOL, "engine '%s' says nothing usable of its model",
                  client->engine);
  return FLASHRT_OK;
}

int flashrt_connect(const char *engine, const char *client, int timeout_ms, int wait_ms,
                    flashrt_client **out, flashrt_error *error)
{
  *out = NULL;
  flashrt_client *made = calloc(1, sizeof *made);
  char *name = strdup(engine);
  if (!made || !name) {
    free(made);
    free(name);
    return fr_fail(error, FLASHRT_INTERNAL, "no memory is left");
  }
  made->engine = name;
  made->timeout_ms = timeout_ms;
  made->busy_poll_ns = FLASHRT_BUSY_POLL_US * 1000;
  made->process_id = getpid();
  made->env_index = -1;
  made->fd = -1;
  int code = fr_dial(engine, wait_ms, &made->fd, error);
  if (!code)
    code = shake_hands(made, client ? client : "", error);
  if (code)
    flashrt_close(made);
  else
    *out = made;
  return code;
}

void flashrt_close(flashrt_client *client)
{
  if (!client)
    return;
  bool is_ours = getpid() == client->process_id; /* a child has no mappings, see fr_map */
  fr_free_writers(client, is_ours);
  if (client->ring && is_ours)
    munmap(client->ring, client->ring_bytes);
  if (client->fd >= 0)
    close(client->fd);
  free(client->joint_names);
  free(client->pool.start);
  free(client->engine);
  free(client);
}

const flashrt_model *flashrt_get_model(const flashrt_client *client)
{
  return &client->model;
}

uint64_t flashrt_engine_epoch(const flashrt_client *client)
{
  return client->engine_epoch;
}

int flashrt_fileno(const flashrt_client *client)
{
  return client->ended.code ? -1 : client->fd;
}

int flashrt_ping(flashrt_client *client, flashrt_error *error)
{
  fr_reader reply;
  fr_writer ping = fr_begin(client, FR_PING, 0);
  return fr_exchange(client, &ping, FR_ACK, &reply, NULL, error);
}

/* Where an engine's socket lies, and whether it may be trusted; as engine/address.py has it. */
#define _GNU_SOURCE
#include "flashrt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define FOLDER_VARIABLE "FLASHRT_RUNTIME_DIR"
#define MAX_NAME_BYTES 4096
#define FILE_BYTES 64 /* 32 readable, a dash, 16 of the digest, ".sock" */
#define RETRY_MS 10

int64_t fr_now_ms(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int fr_left_ms(int64_t expires_ms)
{
  int64_t left = expires_ms - fr_now_ms();
  return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

/* BLAKE2s with a digest of 8 bytes and no key (RFC 7693). ------------------------------------ */

static const uint32_t blake_start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint8_t blake_order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint32_t rotate(uint32_t value, unsigned by)
{
  return value >> by | value << (32 - by);
}

static void blake_mix(uint32_t *v, unsigned place, uint32_t x, uint32_t y)
{
  /* columns first, then diagonals */
  unsigned turn = place >= 4, a = place & 3, b = 4 + ((a + turn) & 3), c = 8 + ((a + 2 * turn) & 3),
           d = 12 + ((a + 3 * turn) & 3);
  v[a] += v[b] + x;
  v[d] = rotate(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotate(v[b] ^ v[c], 12);
  v[a] += v[b] + y;
  v[d] = rotate(v[d] ^ v[a], 8);
  v[c] += v[d];
  v[b] = rotate(v[b] ^ v[c], 7);
}

static void blake_block(uint32_t *h, const uint8_t *block, uint64_t total, bool is_last)
{
  uint32_t v[16], m[16];
  for (unsigned i = 0; i < 16; i++) {
    const uint8_t *w = block + 4 * i;
    m[i] = w[0] | (uint32_t)w[1] << 8 | (uint32_t)w[2] << 16 | (uint32_t)w[3] << 24;
    v[i] = i < 8 ? h[i] : blake_start[i - 8];
  }
  v[12] ^= (uint32_t)total;
  v[13] ^= (uint32_t)(total >> 32);
  v[14] ^= is_last ? UINT32_MAX : 0;
  for (unsigned round = 0; round < 10; round++)
    for (unsigned i = 0; i < 8; i++)
      blake_mix(v, i, m[blake_order[round][2 * i]], m[blake_order[round][2 * i + 1]]);
  for (unsigned i = 0; i < 8; i++)
    h[i] ^= v[i] ^ v[i + 8];
}

static uint64_t blake(const uint8_t *data, size_t length)
{
  uint8_t block[64];
  uint32_t h[8];
  size_t at = 0;
  memcpy(h, blake_start, sizeof h);
  h[0] ^= 0x01010000u ^ 8u;
  for (; length - at > sizeof block; at += sizeof block)
    blake_block(h, data + at, at + sizeof block, false);
  memset(block, 0, sizeof block);
  memcpy(block, data + at, length - at);
  blake_block(h, block, length, true);
  return (uint64_t)__builtin_bswap32(h[0]) << 32 | __builtin_bswap32(h[1]);
}

/* names ------------------------------------------------------------------------------------- */

static bool is_plain(char c)
{
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

/* Write the name of an engine's socket in its folder. */
static int socket_file(const char *engine, char file[FILE_BYTES], flashrt_error *error)
{
  char normal[MAX_NAME_BYTES], readable[33];
  size_t length = 0, shown = 0;
  bool is_gap = false;
  for (const char *at = engine; *at; at++) {
    if (*at == '/' && (length == 0 || at[1] == '/' || at[1] == '\0'))
      continue;
    if (length == sizeof normal)
      return fr_fail(error, FLASHRT_CONFIG, "the engine's name is too long: expected %d bytes",
                     MAX_NAME_BYTES);
    normal[length++] = *at;
  }
  if (!length)
    return fr_fail(error, FLASHRT_CONFIG,
                   "an engine has no name: expected a non-empty name, found '%s'", engine);
  for (size_t i = 0; i < length && shown < 32; i++) {
    if (!is_plain(normal[i])) {
      is_gap = shown > 0;
      continue;
    }
    if (is_gap)
      readable[shown++] = '.';
    is_gap = false;
    if (shown < 32)
      readable[shown++] = normal[i];
  }
  readable[shown] = '\0';
  snprintf(file, FILE_BYTES, "%s%s%016llx.sock", readable, shown ? "-" : "",
           (unsigned long long)blake((const uint8_t *)normal, length));
  return FLASHRT_OK;
}

static bool is_own_folder(const char *path)
{
  struct stat status;
  return path && *path && stat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid();
}

static const char *temporary_folder(void)
{
  const char *folders[] = {getenv("TMPDIR"), getenv("TEMP"), getenv("TMP"),
                           "/tmp",           "/var/tmp",     "/usr/tmp"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    if (folders[i] && *folders[i] && access(folders[i], W_OK | X_OK) == 0)
      return folders[i];
  return ".";
}

/* Find the folder for sockets of this user; it need not exist. Says whether it was named. */
static bool socket_folder(char folder[PATH_MAX])
{
  unsigned user = geteuid();
  const char *explicit = getenv(FOLDER_VARIABLE), *session = getenv("XDG_RUNTIME_DIR");
  char run[64];
  snprintf(run, sizeof run, "/run/user/%u", user);
  if (explicit && *explicit)
    snprintf(folder, PATH_MAX, "%s", explicit);
  else if (is_own_folder(session))
    snprintf(folder, PATH_MAX, "%s/flashrt", session);
  else if (is_own_folder(run))
    snprintf(folder, PATH_MAX, "%s/flashrt", run);
  else
    snprintf(folder, PATH_MAX, "%s/flashrt-%u", temporary_folder(), user);
  return explicit && *explicit;
}

int flashrt_socket_path(const char *engine, char *path, size_t size, flashrt_error *error)
{
  char folder[PATH_MAX], file[FILE_BYTES];
  int code = socket_file(engine, file, error);
  if (code)
    return code;
  socket_folder(folder);
  snprintf(path, size, "%s/%s", folder, file);
  return FLASHRT_OK;
}

/* connecting -------------------------------------------------------------------------------- */

/* Open the folder if nobody else could put a socket in the engine's place. On failure `*number`
 * is what the kernel says, 0 where it is the folder that is not to be trusted. */
static int open_folder(const char *folder, bool is_explicit, uid_t *owner, int *number,
                       flashrt_error *error)
{
  struct stat status;
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  *number = errno;
  if (fd < 0) {
    if (errno == ELOOP || errno == ENOTDIR) {
      *number = 0;
      fr_fail(error, FLASHRT_PEER_REFUSED,
              "the socket folder %s can't be trusted: expected a folder, found a symbolic link or "
              "a file; remove it",
              folder);
    }
    return -1;
  }
  if (fstat(fd, &status)) {
    *number = errno;
    close(fd);
    return -1;
  }
  *owner = status.st_uid;
  bool is_safe = is_explicit ? !(status.st_mode & 022)
                             : !(status.st_mode & 077) && status.st_uid == geteuid();
  if (is_safe)
    return fd;
  *number = 0;
  fr_fail(error, FLASHRT_PEER_REFUSED,
          "the socket folder %s can't be trusted: expected %s, found mode %04o and owner %u; "
          "correct it or remove it",
          folder, is_explicit ? "writable by its owner alone" : "mode 0700 and this user",
          status.st_mode & 07777u, (unsigned)status.st_uid);
  close(fd);
  return -1;
}

/* Try once; `*number` as above. */
static int dial_once(const char *folder, bool is_explicit, const char *file, int *number,
                     flashrt_error *error)
{
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct ucred peer;
  socklen_t length = sizeof peer;
  uid_t owner = 0;
  int folder_fd = open_folder(folder, is_explicit, &owner, number, error);
  if (folder_fd < 0)
    return -1;
  /* Through the folder's descriptor: what was checked is what is used, and paths may be long. */
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", folder_fd, file);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) ||
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length)) {
    *number = errno;
    close(folder_fd);
    if (fd >= 0)
      close(fd);
    return -1;
  }
  close(folder_fd);
  if (peer.uid == 0 || peer.uid == owner || peer.uid == geteuid())
    return fd;
  *number = 0;
  fr_fail(error, FLASHRT_PEER_REFUSED,
          "the process behind %s/%s is not to be trusted: expected user %u, found user %u", folder,
          file, (unsigned)owner, (unsigned)peer.uid);
  close(fd);
  return -1;
}

int fr_dial(const char *engine, int wait_ms, int *fd, flashrt_error *error)
{
  char folder[PATH_MAX], file[FILE_BYTES];
  int64_t expires_ms = fr_now_ms() + wait_ms;
  flashrt_error refusal = {FLASHRT_PEER_REFUSED, ""};
  int number, code = socket_file(engine, file, error);
  if (code)
    return code;
  bool is_explicit = socket_folder(folder);
  for (;;) {
    struct timespec pause = {0, RETRY_MS * 1000000L};
    *fd = dial_once(folder, is_explicit, file, &number, &refusal);
    if (*fd >= 0)
      return FLASHRT_OK;
    if (!number)
      return fr_fail(error, refusal.code, "%s", refusal.message);
    if (number == EACCES || number == EPERM)
      return fr_fail(error, FLASHRT_PEER_REFUSED,
                     "engine '%s' may not be reached: expected access to %s/%s", engine, folder,
                     file);
    if (number != ENOENT && number != ECONNREFUSED && number != EAGAIN && number != EINTR)
      return fr_fail(error, FLASHRT_INTERNAL, "engine '%s' can't be connected to: found %s",
                     engine, strerror(number));
    if (!fr_left_ms(expires_ms))
      return fr_fail(error, FLASHRT_ENGINE_GONE,
                     "no engine named '%s' answers: expected a socket at %s/%s, found %s; start "
                     "the engine, or check its name",
                     engine, folder, file, strerror(number));
    nanosleep(&pause, NULL);
  }
}

/* Strings of a message, and memory that came over the socket. */
#define _GNU_SOURCE
#include "flashrt_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool fr_make_pool(fr_pool *pool, size_t message_bytes)
{
  /* A string takes at least as much in its message, its head included, as here, with its end. */
  pool->at = pool->start = malloc(message_bytes + 1);
  pool->left = message_bytes + 1;
  return pool->start != NULL;
}

const char *fr_keep(fr_pool *pool, fr_bytes text)
{
  char *start = pool->at;
  if (text.length >= pool->left) /* only where the message is bad anyway */
    return "";
  memcpy(start, text.data, text.length);
  start[text.length] = '\0';
  pool->at += text.length + 1;
  pool->left -= text.length + 1;
  return start;
}

int fr_map(int fd, uint64_t num_bytes, bool is_writable, uint8_t **memory, flashrt_error *error)
{
  struct stat status;
  int seals = fcntl(fd, F_GET_SEALS), code = FLASHRT_OK;
  /* Touching a page that was cut off kills the process that touches it. */
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &status) || status.st_size < 0 ||
      (uint64_t)status.st_size < num_bytes || num_bytes > SIZE_MAX) {
    code = fr_fail(error, FLASHRT_SHARED_MEMORY,
                   "the engine's slot memory can't be trusted: expected %llu bytes, sealed against "
                   "shrinking, found seals %#x",
                   (unsigned long long)num_bytes, (unsigned)(seals < 0 ? 0 : seals));
  } else {
    int protection = PROT_READ | (is_writable ? PROT_WRITE : 0);
    /* Populated, so that no first write into a slot waits for the kernel. */
    void *found = mmap(NULL, (size_t)num_bytes, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (found == MAP_FAILED) {
      code = fr_fail(error, FLASHRT_SHARED_MEMORY, "slot memory could not be mapped: found %s",
                     strerror(errno));
    } else {
      /* A forked child that wrote here would write into what the parent hands over. */
      madvise(found, (size_t)num_bytes, MADV_DONTFORK);
      *memory = found;
    }
  }
  close(fd);
  return code;
}

/* Messages of the wire, and errors: a bounded msgpack that allocates nothing. */
#include "flashrt_internal.h"

#include <stdio.h>
#include <string.h>

/* errors ------------------------------------------------------------------------------------ */

const char *flashrt_code_name(int code)
{
  switch (code) {
#define NAME(name) \
  case FLASHRT_##name: \
    return #name
    NAME(NOTHING);
    NAME(OK);
    NAME(INTERNAL);
    NAME(SPEC);
    NAME(PROTOCOL_VERSION);
    NAME(PROTOCOL);
    NAME(ENGINE_GONE);
    NAME(PEER_REFUSED);
    NAME(NO_FREE_SLOT);
    NAME(LOAN);
    NAME(STALE_GENERATION);
    NAME(STALE_STAMP);
    NAME(UNKNOWN_CHANNEL);
    NAME(NO_WRITER_RING);
    NAME(NOT_ACTIVE);
    NAME(UNKNOWN_ENVIRONMENT);
    NAME(UNSUPPORTED);
    NAME(BUSY);
    NAME(SHARED_MEMORY);
    NAME(PAYLOAD_SHAPE);
    NAME(PAYLOAD_TYPE);
    NAME(NON_FINITE);
    NAME(PAYLOAD_RANGE);
    NAME(CONFIG);
#undef NAME
  }
  return "UNKNOWN";
}

int fr_fail(flashrt_error *error, int code, const char *format, ...)
{
  if (error) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    error->code = code;
  }
  return code;
}

int fr_fail_text(flashrt_error *error, int code, fr_bytes message)
{
  if (error) {
    size_t length = message.length;
    if (length > sizeof error->message - 1) {
      length = sizeof error->message - 1;
      while (length && (message.data[length] & 0xc0) == 0x80) /* not in mid-character */
        length--;
    }
    memcpy(error->message, message.data, length);
    error->message[length] = '\0';
    error->code = code;
  }
  return code;
}

/* reading ----------------------------------------------------------------------------------- */

static uint64_t bad(fr_reader *reader)
{
  reader->is_bad = true;
  reader->at = reader->end;
  return 0;
}

static size_t left(const fr_reader *reader)
{
  return (size_t)(reader->end - reader->at);
}

static uint64_t big_endian(fr_reader *reader, size_t num_bytes)
{
  uint64_t value = 0;
  if (left(reader) < num_bytes)
    return bad(reader);
  while (num_bytes--)
    value = value << 8 | *reader->at++;
  return value;
}

static uint8_t first(fr_reader *reader)
{
  return (uint8_t)big_endian(reader, 1);
}

/* Enter text or bytes of a length that is `num_bytes` long. */
static fr_bytes run(fr_reader *reader, size_t num_bytes, uint64_t length)
{
  fr_bytes bytes = {reader->at, 0};
  if (num_bytes)
    length = big_endian(reader, num_bytes);
  if (length > left(reader)) {
    bad(reader);
    return bytes;
  }
  bytes.data = reader->at;
  bytes.length = (size_t)length;
  reader->at += length;
  return bytes;
}

/* Pass one value's head and bytes; returns how many values stand inside it. */
static uint64_t step(fr_reader *reader)
{
  static const uint8_t fixed[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8}; /* ca to d3 */
  uint8_t head = first(reader);
  if (head < 0x80 || head >= 0xe0)
    return 0;
  if (head < 0x90)
    return 2u * (head & 15u);
  if (head < 0xa0)
    return head & 15u;
  if (head < 0xc0) {
    run(reader, 0, head & 31u);
    return 0;
  }
  switch (head) {
  case 0xc0: case 0xc2: case 0xc3:
    return 0;
  case 0xc4: case 0xc5: case 0xc6:
    run(reader, (size_t)1 << (head - 0xc4), 0);
    return 0;
  case 0xd9: case 0xda: case 0xdb:
    run(reader, (size_t)1 << (head - 0xd9), 0);
    return 0;
  case 0xdc: case 0xdd:
    return big_endian(reader, head == 0xdc ? 2 : 4);
  case 0xde: case 0xdf:
    return 2 * big_endian(reader, head == 0xde ? 2 : 4);
  }
  if (head >= 0xca && head <= 0xd3) {
    big_endian(reader, fixed[head - 0xca]);
    return 0;
  }
  return bad(reader); /* an extension, or what msgpack never uses */
}

void fr_skip(fr_reader *reader, uint64_t count)
{
  while (count && !reader->is_bad) {
    count += step(reader) - 1;
    /* Every value takes a byte, so a count that was made up ends here, not in a long loop. */
    if (count > left(reader))
      bad(reader);
  }
}

bool fr_is_whole(const uint8_t *data, size_t length)
{
  fr_reader reader = {data, data + length, false};
  fr_skip(&reader, 1);
  return !reader.is_bad && reader.at == reader.end;
}

uint64_t fr_read_array(fr_reader *reader, uint64_t known)
{
  uint8_t head = first(reader);
  uint64_t count = 0;
  if ((head & 0xf0) == 0x90)
    count = head & 15u;
  else if (head == 0xdc || head == 0xdd)
    count = big_endian(reader, head == 0xdc ? 2 : 4);
  else
    return bad(reader);
  if (count < known || count > left(reader))
    return bad(reader);
  return count - known;
}

uint32_t fr_read_list(fr_reader *reader, size_t item_bytes)
{
  uint64_t count = fr_read_array(reader, 0);
  return (uint32_t)(count > left(reader) / item_bytes ? bad(reader) : count);
}

/* Read an integer's bits; `is_negative` says how to take them. */
static uint64_t integer(fr_reader *reader, bool *is_negative)
{
  uint8_t head = first(reader);
  *is_negative = false;
  if (head < 0x80)
    return reader->is_bad ? 0 : head;
  if (head >= 0xe0) {
    *is_negative = true;
    return (uint64_t)(int64_t)(int8_t)head;
  }
  if (head >= 0xcc && head <= 0xcf)
    return big_endian(reader, (size_t)1 << (head - 0xcc));
  if (head >= 0xd0 && head <= 0xd3) {
    unsigned shift = 64 - (8u << (head - 0xd0));
    int64_t value = (int64_t)(big_endian(reader, (size_t)1 << (head - 0xd0)) << shift) >> shift;
    *is_negative = value < 0;
    return (uint64_t)value;
  }
  return bad(reader);
}

uint64_t fr_read_u64(fr_reader *reader, uint64_t most)
{
  bool is_negative;
  uint64_t value = integer(reader, &is_negative);
  return is_negative || value > most ? bad(reader) : value;
}

int64_t fr_read_i64(fr_reader *reader)
{
  bool is_negative;
  uint64_t value = integer(reader, &is_negative);
  return (int64_t)(!is_negative && value > INT64_MAX ? bad(reader) : value);
}

uint32_t fr_read_u32(fr_reader *reader)
{
  return (uint32_t)fr_read_u64(reader, UINT32_MAX);
}

double fr_read_double(fr_reader *reader, double otherwise)
{
  uint8_t head = left(reader) ? *reader->at : 0xc1;
  if (head == 0xc0) {
    reader->at++;
    return otherwise;
  }
  if (head == 0xca) {
    float value;
    reader->at++;
    uint32_t bits = (uint32_t)big_endian(reader, 4);
    memcpy(&value, &bits, sizeof value);
    return (double)value;
  }
  if (head == 0xcb) {
    double value;
    reader->at++;
    uint64_t bits = big_endian(reader, 8);
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  return (double)fr_read_i64(reader);
}

fr_bytes fr_read_text(fr_reader *reader)
{
  uint8_t head = first(reader);
  if ((head & 0xe0) == 0xa0)
    return run(reader, 0, head & 31u);
  if (head < 0xd9 || head > 0xdb)
    bad(reader);
  return run(reader, reader->is_bad ? 0 : (size_t)1 << (head - 0xd9), 0);
}

fr_bytes fr_read_binary(fr_reader *reader)
{
  uint8_t head = first(reader);
  if (head < 0xc4 || head > 0xc6)
    bad(reader);
  return run(reader, reader->is_bad ? 0 : (size_t)1 << (head - 0xc4), 0);
}

/* writing ----------------------------------------------------------------------------------- */

static void put(fr_writer *writer, uint64_t value, size_t num_bytes)
{
  if ((size_t)(writer->end - writer->at) < num_bytes) {
    writer->is_full = true;
    return;
  }
  while (num_bytes--)
    *writer->at++ = (uint8_t)(value >> (8 * num_bytes));
}

void fr_write_array(fr_writer *writer, uint8_t count)
{
  put(writer, 0x90u | count, 1);
}

void fr_write_u64(fr_writer *writer, uint64_t value)
{
  if (value >= 0x80)
    put(writer, 0xcf, 1);
  put(writer, value, value >= 0x80 ? 8 : 1);
}

void fr_write_i64(fr_writer *writer, int64_t value)
{
  put(writer, 0xd3, 1);
  put(writer, (uint64_t)value, 8);
}

void fr_write_bool(fr_writer *writer, bool value)
{
  put(writer, value ? 0xc3 : 0xc2, 1);
}

void fr_write_text(fr_writer *writer, const char *text)
{
  size_t length = strlen(text);
  put(writer, 0xdb, 1);
  put(writer, length, 4);
  if (length > (size_t)(writer->end - writer->at)) {
    writer->is_full = true;
    return;
  }
  memcpy(writer->at, text, length);
  writer->at += length;
}

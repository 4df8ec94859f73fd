/* Actions and chunks: credits, payloads that ride in messages, and those that lie in slots. */
#include "flashrt_internal.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

int flashrt_subscribe(flashrt_client *client, uint32_t env_index, bool actions, bool chunks,
                      flashrt_error *error)
{
  fr_reader reply;
  int fd = -1;
  if (client->env_index >= 0)
    return fr_fail(error, FLASHRT_UNSUPPORTED,
                   "this connection has a subscription, of environment %lld: expected one for each "
                   "connection; open another",
                   (long long)client->env_index);
  fr_writer request = fr_begin(client, FR_SUBSCRIBE, 4);
  fr_write_u64(&request, env_index);
  fr_write_bool(&request, actions);
  fr_write_bool(&request, chunks);
  fr_write_bool(&request, false); /* events: this library has no use for them */
  int code = fr_exchange(client, &request, FR_SUBSCRIBED, &reply, &fd, error);
  if (code)
    return code;
  uint64_t slot_bytes = fr_read_u64(&reply, UINT32_MAX);
  uint32_t num_slots = fr_read_u32(&reply);
  bool has_ring = slot_bytes > 0 && num_slots > 0 && num_slots <= INT32_MAX;
  if (reply.is_bad || (fd >= 0) != (slot_bytes > 0) || (slot_bytes > 0) != has_ring) {
    if (fd >= 0)
      close(fd);
    return fr_end(client, error, FLASHRT_PROTOCOL, "no memory came with a subscription");
  }
  if (has_ring) {
    uint64_t num_bytes = slot_bytes * num_slots;
    code = fr_map(fd, num_bytes, false, &client->ring, error);
    if (code)
      return code;
    client->ring_bytes = (size_t)num_bytes;
    client->output_slot_bytes = slot_bytes;
    client->num_output_slots = num_slots;
  }
  client->env_index = env_index;
  client->lanes[FLASHRT_ACTION].is_wanted = actions;
  client->lanes[FLASHRT_CHUNK].is_wanted = chunks;
  return FLASHRT_OK;
}

static void read_provenance(fr_reader *message, flashrt_output *output)
{
  uint64_t more = fr_read_array(message, 12);
  output->engine_epoch = fr_read_u64(message, UINT64_MAX);
  output->env_index = fr_read_u32(message);
  output->branch = fr_read_i64(message);
  output->generation = fr_read_u64(message, UINT64_MAX);
  output->sequence = fr_read_u64(message, UINT64_MAX);
  output->tick = fr_read_i64(message);
  output->latched_tick = fr_read_i64(message);
  output->goal_sequence = fr_read_u64(message, UINT64_MAX);
  output->goal_source_sequence = fr_read_u64(message, UINT64_MAX);
  output->goal_stamp_ns = fr_read_i64(message);
  output->observation_sequence = fr_read_u64(message, UINT64_MAX);
  output->observation_stamp_ns = fr_read_i64(message);
  output->goal_expires_ns = 0;
  memset(output->capsule_id, 0, sizeof output->capsule_id);
  if (more) {
    fr_bytes id = fr_read_text(message);
    if (id.length >= sizeof output->capsule_id)
      message->is_bad = true;
    else
      memcpy(output->capsule_id, id.data, id.length);
    if (more > 1)
      output->goal_expires_ns = fr_read_i64(message);
    fr_skip(message, more > 1 ? more - 2 : 0);
  }
}

bool fr_keep_output(flashrt_client *client, fr_reader *message)
{
  const flashrt_model *model = &client->model;
  uint64_t kind = fr_read_u64(message, FLASHRT_CHUNK);
  fr_lane *lane = &client->lanes[kind];
  flashrt_output *output = &lane->output;
  /* An output before the release of the last would take that one's memory from under its reader. */
  if (message->is_bad || !lane->is_wanted || lane->is_kept || lane->is_read)
    return false;
  output->kind = (flashrt_kind)kind;
  read_provenance(message, output);
  output->index = fr_read_u32(message);
  int64_t slot = fr_read_i64(message);
  fr_bytes payload = fr_read_binary(message);
  output->missed = fr_read_u64(message, UINT64_MAX);
  output->produced_ns = fr_read_i64(message);
  output->num_values = model->action_dim * (kind == FLASHRT_CHUNK ? model->horizon : 1);
  uint64_t num_bytes = (uint64_t)output->num_values * sizeof(float);
  if (message->is_bad || output->env_index != client->env_index)
    return false;
  if (slot == -1) {
    if (payload.length != num_bytes || num_bytes > sizeof lane->payload)
      return false;
    memcpy(lane->payload, payload.data, payload.length);
    output->values = (const float *)(const void *)lane->payload;
  } else {
    if (slot < 0 || slot >= client->num_output_slots || num_bytes > client->output_slot_bytes ||
        client->output_slot_bytes % sizeof(float))
      return false;
    output->values =
        (const float *)(const void *)(client->ring + (size_t)slot * client->output_slot_bytes);
  }
  output->slot = (int32_t)slot;
  lane->arrival = ++client->num_arrivals;
  lane->is_kept = true;
  return true;
}

int flashrt_read(flashrt_client *client, flashrt_output *output, int timeout_ms,
                 flashrt_error *error)
{
  int64_t expires_ms = fr_now_ms() + timeout_ms;
  for (;;) {
    int code = fr_require(client, error); /* what is kept may lie in memory that a child lacks */
    if (code)
      return code;
    fr_lane *action = &client->lanes[FLASHRT_ACTION], *chunk = &client->lanes[FLASHRT_CHUNK];
    fr_lane *lane = action->is_kept ? action : chunk;
    if (action->is_kept && chunk->is_kept && chunk->arrival < action->arrival)
      lane = chunk;
    if (lane->is_kept) {
      lane->is_kept = false;
      lane->is_read = true;
      *output = lane->output;
      return FLASHRT_OK;
    }
    if (!fr_wait(client, POLLIN, expires_ms))
      return FLASHRT_NOTHING;
    code = fr_receive_output(client, error);
    if (code > 0)
      return code;
  }
}

int flashrt_release(flashrt_client *client, const flashrt_output *output, flashrt_error *error)
{
  fr_lane *lane = &client->lanes[output->kind == FLASHRT_CHUNK];
  int code = fr_require(client, error);
  if (code)
    return code;
  if (!lane->is_read || lane->output.sequence != output->sequence)
    return fr_fail(error, FLASHRT_LOAN,
                   "output %llu is not to be released: expected one that was read, once",
                   (unsigned long long)output->sequence);
  lane->is_read = false;
  fr_writer request = fr_begin(client, FR_RELEASE, 3);
  fr_write_u64(&request, output->env_index);
  fr_write_u64(&request, output->kind);
  fr_write_i64(&request, lane->output.slot);
  return fr_send(client, &request, fr_now_ms() + client->timeout_ms, error);
}

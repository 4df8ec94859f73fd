// A planner in C++: writes a goal into the policy's own memory, and waits for its first action.
//
//   planner ENGINE X Y      e.g. planner engine 0.2 0.1
//
// The engine has to tick (a policy node is active, or a trainer steps it).

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "flashrt_slots.h"

namespace {

constexpr int kAnswerMs = 1000;
constexpr int kStartMs = 10000;
constexpr int kActionMs = 5000;

using Client = std::unique_ptr<flashrt_client, decltype(&flashrt_close)>;
using Clock = std::chrono::steady_clock;

void check(int code, const flashrt_error& error) {
  if (code != FLASHRT_OK) {
    throw std::runtime_error(std::string(flashrt_code_name(code)) + ": " + error.message);
  }
}

Client connect(const char* engine) {
  flashrt_error error{};
  flashrt_client* client = nullptr;
  check(flashrt_connect(engine, "planner.cpp", kAnswerMs, kStartMs, &client, &error), error);
  return {client, &flashrt_close};
}

std::int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Writes the goal in place and hands it over; returns the engine's number of it.
std::uint64_t send_goal(flashrt_writer* writer, float x, float y) {
  flashrt_error error{};
  auto* values =
      static_cast<float*>(flashrt_field(writer, "values", FLASHRT_FLOAT32, 2, &error));
  if (values == nullptr) {
    check(error.code, error);
  }
  values[0] = x;
  values[1] = y;
  std::uint64_t sequence = 0;
  check(flashrt_commit(writer, now_ns(), 1, 0, &sequence, &error), error);
  return sequence;
}

// Reads actions until one was made from this goal, or a newer one.
void await_action(flashrt_client* client, std::uint64_t goal) {
  flashrt_error error{};
  const auto expires = Clock::now() + std::chrono::milliseconds(kActionMs);
  while (Clock::now() < expires) {
    flashrt_output action{};
    const int code = flashrt_read(client, &action, 100, &error);
    if (code == FLASHRT_NOTHING) {
      continue;
    }
    check(code, error);
    const bool is_ours = action.goal_sequence >= goal;
    if (is_ours) {
      std::printf("goal %llu, tick %lld, action", static_cast<unsigned long long>(goal),
                  static_cast<long long>(action.tick));
      for (std::uint32_t i = 0; i < action.num_values; ++i) {
        std::printf(" %g", static_cast<double>(action.values[i]));
      }
      std::printf("\n");
    }
    check(flashrt_release(client, &action, &error), error);
    if (is_ours) {
      return;
    }
  }
  throw std::runtime_error("no action came: is the engine active, and does it get observations?");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s ENGINE X Y\n", argv[0]);
    return 2;
  }
  try {
    const Client client = connect(argv[1]);
    flashrt_error error{};
    flashrt_writer* writer = nullptr;
    check(flashrt_open_writer(client.get(), "goal", 0, &writer, &error), error);
    check(flashrt_subscribe(client.get(), 0, true, false, &error), error);
    await_action(client.get(), send_goal(writer, std::strtof(argv[2], nullptr),
                                         std::strtof(argv[3], nullptr)));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}

"""Models as buffers, channels, programs and a plan; on the runtime, never on the engine."""

/* Whether a slot holds what its channel allows; the checks of engine/payload.py. */
#include "flashrt_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "with -ffast-math no NaN would be found"
#endif

size_t fr_item_bytes(flashrt_dtype dtype)
{
  switch (dtype) {
  case FLASHRT_FLOAT64: case FLASHRT_INT64:
    return 8;
  case FLASHRT_FLOAT32: case FLASHRT_INT32:
    return 4;
  case FLASHRT_FLOAT16: case FLASHRT_BFLOAT16: case FLASHRT_INT16:
    return 2;
  default:
    return 1;
  }
}

static double half(uint16_t bits)
{
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = fraction * 0x1p-24; /* where the exponent is 0 */
  if (exponent == 31)
    size = fraction ? NAN : INFINITY;
  else if (exponent)
    size = (1024 + fraction) * 0x1p-25 * (double)(1ul << exponent);
  return bits & 0x8000 ? -size : size;
}

static double item(flashrt_dtype dtype, const uint8_t *data, uint64_t index)
{
  union {
    double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    int16_t i16;
    uint16_t u16;
    int8_t i8;
    uint8_t u8;
    uint32_t u32;
  } value = {0};
  size_t num_bytes = fr_item_bytes(dtype);
  memcpy(&value, data + index * num_bytes, num_bytes);
  switch (dtype) {
  case FLASHRT_FLOAT64:
    return value.f64;
  case FLASHRT_FLOAT32:
    return (double)value.f32;
  case FLASHRT_FLOAT16:
    return half(value.u16);
  case FLASHRT_BFLOAT16:
    value.u32 = (uint32_t)value.u16 << 16; /* the upper half of a float32 */
    return (double)value.f32;
  case FLASHRT_INT64:
    return (double)value.i64;
  case FLASHRT_INT32:
    return value.i32;
  case FLASHRT_INT16:
    return value.i16;
  case FLASHRT_INT8:
    return value.i8;
  default:
    return value.u8;
  }
}

/* One pass and no branch, so that it keeps up with memory: NaN and Inf are outside any range. */
static bool all_inside_f32(const float *values, uint64_t count, double low, double high)
{
  float least = low > -FLT_MAX ? (float)low : -FLT_MAX;
  float most = high < FLT_MAX ? (float)high : FLT_MAX;
  unsigned outside = 0;
  for (uint64_t i = 0; i < count; i++)
    outside |= (unsigned)!(values[i] >= least) | (unsigned)!(values[i] <= most);
  return !outside;
}

static bool all_inside_f64(const double *values, uint64_t count, double low, double high)
{
  double least = low > -DBL_MAX ? low : -DBL_MAX, most = high < DBL_MAX ? high : DBL_MAX;
  unsigned outside = 0;
  for (uint64_t i = 0; i < count; i++)
    outside |= (unsigned)!(values[i] >= least) | (unsigned)!(values[i] <= most);
  return !outside;
}

static bool is_float(flashrt_dtype dtype)
{
  return dtype <= FLASHRT_BFLOAT16;
}

/* Round to nearest even at so many binary digits behind the first, and at a smallest exponent. */
static double rounded(double value, int digits, int least_exponent)
{
  uint64_t bits, quantum_bits;
  double quantum;
  if (!isfinite(value))
    return value;
  memcpy(&bits, &value, sizeof bits);
  int exponent = (int)(bits >> 52 & 2047) - 1023;
  exponent = exponent < least_exponent ? least_exponent : exponent;
  quantum_bits = (uint64_t)(exponent - digits + 1023) << 52;
  memcpy(&quantum, &quantum_bits, sizeof quantum);
  double shift = 0x1.8p52 * quantum; /* what is added to it keeps whole quanta */
  return value + shift - shift;
}

/* Return a bound as a number of the field's dtype: values are compared as such. */
static double as_item(double bound, flashrt_dtype dtype)
{
  switch (dtype) {
  case FLASHRT_FLOAT32:
    return (double)(float)bound;
  case FLASHRT_FLOAT16:
    return rounded(bound, 10, -14);
  case FLASHRT_BFLOAT16:
    return rounded(bound, 7, -126);
  default:
    return bound;
  }
}

/* Look at every item; what is wrong goes into the error. */
static int check_items(const char *channel, const flashrt_field_info *field, const uint8_t *data,
                       flashrt_error *error)
{
  bool is_bool = field->dtype == FLASHRT_BOOL;
  double low = as_item(is_bool && field->low < 0 ? 0 : field->low, field->dtype);
  double high = as_item(is_bool && field->high > 1 ? 1 : field->high, field->dtype);
  double least = INFINITY, most = -INFINITY;
  uint64_t num_bad = 0;
  bool is_outside = false;
  for (uint64_t i = 0; i < field->num_items; i++) {
    double value = item(field->dtype, data, i);
    num_bad += is_float(field->dtype) && !isfinite(value);
    is_outside |= !(value >= low && value <= high);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  if (num_bad)
    return fr_fail(error, FLASHRT_NON_FINITE,
                   "field '%.64s' of channel '%.64s' is not finite: expected finite values, found "
                   "%llu NaN or Inf",
                   field->name, channel, (unsigned long long)num_bad);
  if (is_outside)
    return fr_fail(error, FLASHRT_PAYLOAD_RANGE,
                   "field '%.64s' of channel '%.64s' leaves its range: expected %g to %g %.32s, "
                   "found %g to %g",
                   field->name, channel, low, high, field->units, least, most);
  return FLASHRT_OK;
}

int fr_check_payload(const flashrt_channel *channel, const uint8_t *slot, flashrt_error *error)
{
  for (uint32_t i = 0; i < channel->num_fields; i++) {
    const flashrt_field_info *field = &channel->fields[i];
    const uint8_t *data = slot + field->offset;
    const void *values = data; /* aligned: flashrt_open_writer has seen to it */
    bool is_fine = false;
    if (field->dtype == FLASHRT_FLOAT32)
      is_fine = all_inside_f32(values, field->num_items, field->low, field->high);
    else if (field->dtype == FLASHRT_FLOAT64)
      is_fine = all_inside_f64(values, field->num_items, field->low, field->high);
    else if (!is_float(field->dtype) && field->dtype != FLASHRT_BOOL)
      is_fine = field->low == -INFINITY && field->high == INFINITY; /* as with an image */
    int code = is_fine ? FLASHRT_OK : check_items(channel->name, field, data, error);
    if (code)
      return code;
  }
  return FLASHRT_OK;
}

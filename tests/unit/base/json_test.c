/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <string.h>

#include "base/json.h"

static void write_sample(struct json *j)
{
	json_open_object(j, NULL);
	json_text(j, "text", "a\"b\\c\n\xe4");
	json_i64(j, "low", INT64_MIN);
	json_u64(j, "high", UINT64_MAX);
	json_open_array(j, "list");
	json_bool(j, NULL, true);
	json_bool(j, NULL, false);
	json_null(j, NULL);
	json_open_object(j, NULL);
	json_close_object(j);
	json_close_array(j);
	json_text(j, "none", NULL);
	json_close_object(j);
}

static const char sample[] =
	"{\"text\": \"a\\\"b\\\\c\\u000a\\u00e4\", \"low\": -9223372036854775808, "
	"\"high\": 18446744073709551615, \"list\": [true, false, null, {}], \"none\": null}";

static void json_of_every_kind_is_written_with_commas_and_escapes(void **state)
{
	/* Goal: members, nesting, limits of numbers and bytes that JSON does not take as they are.
	 */
	struct json j;
	char out[512];

	(void)state;
	json_init(&j, out, sizeof(out));
	write_sample(&j);
	assert_int_equal(json_end(&j), sizeof(sample) - 1);
	assert_string_equal(out, sample);
}

static void json_without_room_is_cut_and_tells_the_full_length(void **state)
{
	/* Goal: for every size of buffer a terminated prefix, nothing behind it, the same length.
	 */
	char out[sizeof(sample) + 1];
	struct json j;

	(void)state;
	for (size_t room = 0; room <= sizeof(sample); room++) {
		memset(out, '#', sizeof(out));
		json_init(&j, out, room);
		write_sample(&j);
		assert_int_equal(json_end(&j), sizeof(sample) - 1);
		assert_int_equal(out[room], '#');
		if (room == 0)
			continue;
		assert_int_equal(strlen(out),
		                 room - 1 < strlen(sample) ? room - 1 : strlen(sample));
		assert_memory_equal(out, sample, strlen(out));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(json_of_every_kind_is_written_with_commas_and_escapes),
		cmocka_unit_test(json_without_room_is_cut_and_tells_the_full_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

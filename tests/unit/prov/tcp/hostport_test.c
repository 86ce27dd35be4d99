/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "plat/rand.h"
#include "prov/tcp/hostport.h"

#include <stdlib.h>
#include <string.h>

/* The text between the next two quotes; moves *at behind them. */
static bool next_string(const char **at, char *out, size_t out_bytes)
{
	const char *open = strchr(*at, '"');
	const char *close = open ? strchr(open + 1, '"') : NULL;

	if (!close || (size_t)(close - open) > out_bytes)
		return false;
	memcpy(out, open + 1, (size_t)(close - open - 1));
	out[close - open - 1] = '\0';
	*at = close + 1;
	return true;
}

static char *read_data(const char *name)
{
	char path[512];
	char *text = calloc(1, 1 << 16);
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s", TEST_DATA_DIR, name);
	file = fopen(path, "r");
	if (!file)
		fail_msg("cannot read %s", path);
	(void)fread(text, 1, (1 << 16) - 1, file);
	(void)fclose(file);
	return text;
}

static void check_row(const char *input, const char *host, const char *port)
{
	struct tcp_hostport hp = { .port = 77 };
	const char *why = NULL;
	wimm_status st = tcp_hostport_parse(input, &hp, &why);

	if (!host) {
		if (st != WIMM_E_PARSE || !why)
			fail_msg("\"%s\" is accepted", input);
		assert_int_equal(hp.port, 77); /* outputs only on success */
		return;
	}
	if (st != WIMM_OK)
		fail_msg("\"%s\" is refused: %s", input, why);
	assert_string_equal(hp.host, host);
	assert_int_equal(hp.has_port, strcmp(port, "default") != 0);
	if (hp.has_port)
		assert_int_equal(hp.port, atoi(port));
}

static void hostport_every_listed_form_is_read_as_listed(void **state)
{
	/* Goal: each row of addr_strings.json, the wrong ones too. */
	char *text = read_data("addr_strings.json");
	const char *at = strstr(text, "\"cases\"");
	char input[128];
	char first[128];
	unsigned rows = 0;

	(void)state;
	while ((at = strstr(at, "\"input\":")) != NULL) {
		char port[128] = "";
		const char *bracket;

		at += strlen("\"input\":");
		assert_true(next_string(&at, input, sizeof(input)));
		at = strstr(at, "\"expect\":") + strlen("\"expect\":");
		bracket = strpbrk(at, "[\"");
		assert_true(next_string(&at, first, sizeof(first)));
		rows++;
		if (*bracket != '[') {
			assert_string_equal(first, "error");
			check_row(input, NULL, NULL);
			continue;
		}
		at = strchr(at, ',') + 1;
		if (at[strspn(at, " \n")] == '"')
			assert_true(next_string(&at, port, sizeof(port)));
		else
			(void)snprintf(port, sizeof(port), "%ld", strtol(at, NULL, 10));
		check_row(input, first, port);
	}
	assert_int_equal(rows, 21);
	free(text);
}

static void hostport_forms_beside_the_list_are_refused(void **state)
{
	/* Goal: siblings of the listed wrong forms. */
	static const char *const wrong[] = {
		"[]:5",        "[::1]5",      "[::1]:",     "[::1]:65536", "[::1]:-1",
		"[::1%]:5",    "::1%",        "a b:5",      "a/b",         " 127.0.0.1",
		"host: 5",     "host:000005", "1.2.3.4:5:", "[1.2.3.4]:5", "[[::1]]:5",
		"host%eth0:5", "[::1%e!h]:5",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		check_row(wrong[i], NULL, NULL);
	check_row("fe80::1%eth0", "fe80::1%eth0", "default");
	check_row("host_1.a-b:00080", "host_1.a-b", "80");
}

static void hostport_random_text_never_breaks_it(void **state)
{
	/* Goal: any text is an error or a host within its limits. */
	static const char alphabet[] = "0123456789abcdef:.[]%-+ \x80z";
	struct rng r;

	(void)state;
	rng_init(&r, test_seed(9));
	for (uint32_t i = 0; i < 100000; i++) {
		char text[400];
		size_t len = rng_below(&r, i % 50 == 0 ? sizeof(text) : 24);
		struct tcp_hostport hp;

		for (size_t k = 0; k < len; k++)
			text[k] = alphabet[rng_below(&r, sizeof(alphabet) - 1)];
		text[len] = '\0';
		if (tcp_hostport_parse(text, &hp, NULL) != WIMM_OK)
			continue;
		assert_true(strlen(hp.host) > 0 && strlen(hp.host) < TCP_HOST_BYTES);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hostport_every_listed_form_is_read_as_listed),
		cmocka_unit_test(hostport_forms_beside_the_list_are_refused),
		cmocka_unit_test(hostport_random_text_never_breaks_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <wimm/engine.h>

#include "base/config.h"
#include "prov/prov.h"

static char *fetch(void)
{
	size_t len;
	char *text;

	assert_int_equal(wimm_info_json(NULL, 0, &len), WIMM_E_LIMIT);
	text = malloc(len + 1);
	assert_non_null(text);
	assert_ok(wimm_info_json(text, len + 1, &len));
	assert_int_equal(strlen(text), len);
	return text;
}

static const char *text_of(const cJSON *object, const char *name)
{
	return cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
}

static const cJSON *find(const cJSON *list, const char *name)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, list) if (strcmp(text_of(item, "name"), name) == 0) return item;
	return NULL;
}

static void info_lists_providers_of_the_build_with_their_nics_and_those_it_lacks(void **state)
{
	/* Goal: what is there says what it can, what is not says so. */
	char *text = fetch();
	cJSON *info = cJSON_Parse(text);
	const cJSON *providers = cJSON_GetObjectItem(info, "providers");
	const cJSON *provider;
	const cJSON *nic;

	(void)state;
	assert_non_null(info);
	assert_string_equal(text_of(info, "version"), WIMM_VERSION_STRING);
	assert_string_equal(text_of(find(providers, "tcp"), "state"), "ready");
	nic = cJSON_GetArrayItem(cJSON_GetObjectItem(find(providers, "tcp"), "nics"), 0);
	assert_string_equal(text_of(nic, "status"), "OK");
	assert_true(cJSON_IsTrue(
		cJSON_GetObjectItem(cJSON_GetObjectItem(nic, "capabilities"), "ordered")));
	cJSON_ArrayForEach(provider, providers)
	{
		bool there = prov_find(text_of(provider, "name")) != NULL;
		bool nics = cJSON_GetArraySize(cJSON_GetObjectItem(provider, "nics")) != 0;

		assert_string_equal(text_of(provider, "state"),
		                    nics    ? "ready"
		                    : there ? "no NIC found"
		                            : "not in this build");
		assert_true(there || !nics);
	}
	assert_non_null(find(providers, "fabric"));
	assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(info, "limits")), 2);
	cJSON_Delete(info);
	free(text);
}

static void info_has_every_setting_with_its_source(void **state)
{
	/* Goal: the list is the table, and a changed value shows with where it came from. */
	struct config_info row;
	const cJSON *settings;
	char *text;
	cJSON *info;

	(void)state;
	assert_ok(config_set("nics", "127.0.0.1:0"));
	assert_ok(config_set("spin_us", "3"));
	text = fetch();
	info = cJSON_Parse(text);
	settings = cJSON_GetObjectItem(info, "settings");
	for (uint32_t i = 0; config_info_at(i, &row); i++)
		assert_string_equal(text_of(find(settings, row.name), "env"), row.env);
	assert_string_equal(text_of(find(settings, "nics"), "value"), "127.0.0.1:0");
	assert_string_equal(text_of(find(settings, "nics"), "source"), "program");
	assert_int_equal(
		cJSON_GetNumberValue(cJSON_GetObjectItem(find(settings, "spin_us"), "value")), 3);
	cJSON_Delete(info);
	free(text);
}

static void info_without_room_is_cut_and_says_how_much_is_needed(void **state)
{
	/* Goal: E_LIMIT, a terminated prefix, the full length; bad arguments are refused. */
	char *text = fetch();
	char part[64];
	size_t len;

	(void)state;
	assert_int_equal(wimm_info_json(part, sizeof(part), &len), WIMM_E_LIMIT);
	assert_int_equal(len, strlen(text));
	assert_int_equal(strlen(part), sizeof(part) - 1);
	assert_memory_equal(part, text, strlen(part));
	assert_int_equal(wimm_info_json(part, sizeof(part), NULL), WIMM_E_INVAL);
	assert_int_equal(wimm_info_json(NULL, 1, &len), WIMM_E_INVAL);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			info_lists_providers_of_the_build_with_their_nics_and_those_it_lacks),
		cmocka_unit_test(info_has_every_setting_with_its_source),
		cmocka_unit_test(info_without_room_is_cut_and_says_how_much_is_needed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

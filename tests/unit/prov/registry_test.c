/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "prov/providers.h"

#include <string.h>

static void registry_every_listed_provider_is_found_by_its_name(void **state)
{
	/* Goal: the list ends, names are unique, and each leads back to its table. */
	uint32_t count = 0;
	const struct prov_ops *ops;

	(void)state;
	for (; (ops = prov_at(count)) != NULL; count++) {
		assert_int_equal(ops->abi, PROV_ABI);
		assert_ptr_equal(prov_find(ops->name), ops);
	}
	assert_true(count >= 1);
	assert_null(prov_at(count + 1));
	assert_null(prov_at(UINT32_MAX));
}

static void registry_tables_have_no_empty_slot(void **state)
{
	/* Goal: callers need never test an entry for NULL. */
	const struct prov_ops *ops;

	(void)state;
	for (uint32_t i = 0; (ops = prov_at(i)) != NULL; i++) {
		const char *entries = (const char *)&ops->open;
		const char *end = (const char *)(ops + 1);

		for (; entries < end; entries += sizeof(void *)) {
			void *entry;

			memcpy(&entry, entries, sizeof(entry));
			assert_non_null(entry);
		}
	}
}

static void registry_unknown_name_is_not_found(void **state)
{
	/* Goal: near misses do not match. */
	(void)state;
	assert_null(prov_find(""));
	assert_null(prov_find("TCP"));
	assert_null(prov_find("tcp "));
	assert_non_null(prov_find("tcp"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(registry_every_listed_provider_is_found_by_its_name),
		cmocka_unit_test(registry_tables_have_no_empty_slot),
		cmocka_unit_test(registry_unknown_name_is_not_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

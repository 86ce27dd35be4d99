/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test.h"

#include "prov/verbs/gid.h"

#include <arpa/inet.h>
#include <string.h>

static struct ibv_gid_entry entry(uint32_t index, const char *text, enum ibv_gid_type type)
{
	struct ibv_gid_entry e = { .gid_index = index, .port_num = 1, .gid_type = type };

	if (strchr(text, ':')) {
		assert_int_equal(inet_pton(AF_INET6, text, e.gid.raw), 1);
	} else {
		e.gid.raw[10] = e.gid.raw[11] = 0xff;
		assert_int_equal(inet_pton(AF_INET, text, e.gid.raw + 12), 1);
	}
	return e;
}

#define V1 IBV_GID_TYPE_ROCE_V1
#define V2 IBV_GID_TYPE_ROCE_V2

static void verbs_gid_most_routable_entry_is_chosen(void **state)
{
	/* Goal: RoCE v2 before v1, IPv4 before IPv6 before link-local, then the lowest index. */
	const struct ibv_gid_entry table[] = {
		entry(0, "fe80::1", V1),     entry(1, "fe80::1", V2),     entry(2, "10.0.0.1", V1),
		entry(3, "169.254.7.7", V2), entry(4, "2001:db8::1", V2), entry(7, "10.0.0.2", V2),
		entry(5, "10.0.0.1", V2),    entry(6, "10.0.0.3", V2),
	};
	static const uint32_t want_of_first[] = { 0, 0, 1, 1, 1, 4, 7, 5, 5 };

	(void)state;
	assert_null(verbs_gid_choose(table, 0, 1, true, -1));
	for (size_t n = 1; n <= 8; n++)
		assert_int_equal(verbs_gid_choose(table, n, 1, true, -1)->gid_index,
		                 want_of_first[n]);
	assert_string_equal(verbs_gid_kind(&table[6], true), "RoCE v2, IPv4");
	assert_string_equal(verbs_gid_kind(&table[3], true), "RoCE v2, link-local");
	assert_string_equal(verbs_gid_kind(&table[2], true), "RoCE v1");
	assert_string_equal(verbs_gid_kind(&table[2], false), "InfiniBand");
}

static void verbs_gid_wanted_index_and_port_are_kept_to(void **state)
{
	/* Goal: a setting wins over the choice; other ports' and empty entries do not count. */
	struct ibv_gid_entry table[] = { entry(0, "fe80::1", V2), entry(1, "10.0.0.1", V2),
		                         entry(2, "::", V2), entry(0, "10.0.0.9", V2) };

	(void)state;
	table[3].port_num = 2;
	assert_int_equal(verbs_gid_choose(table, 4, 1, true, 0)->gid_index, 0);
	assert_null(verbs_gid_choose(table, 4, 1, true, 2));
	assert_null(verbs_gid_choose(table, 4, 1, true, 9));
	assert_ptr_equal(verbs_gid_choose(table, 4, 2, true, -1), &table[3]);
	assert_int_equal(verbs_gid_choose(table, 4, 1, false, -1)->gid_index, 0);
}

static void verbs_gid_layouts_of_common_fabrics_are_understood(void **state)
{
	/* Goal: the tables that drivers make: each address twice, as v1 and v2; a second address; a
	 * fabric without IPv4; one whose only address is link-local; InfiniBand. */
	const struct ibv_gid_entry pairs[] = {
		entry(0, "fe80::ba59:9fff:fe1:2", V1), entry(1, "fe80::ba59:9fff:fe1:2", V2),
		entry(2, "192.168.3.4", V1),           entry(3, "192.168.3.4", V2),
		entry(4, "192.168.9.4", V1),           entry(5, "192.168.9.4", V2),
	};
	const struct ibv_gid_entry ipv6[] = {
		entry(0, "fe80::1", V1),     entry(1, "fe80::1", V2),
		entry(2, "fd00:1::7", V1),   entry(3, "fd00:1::7", V2),
	};
	const struct ibv_gid_entry v2_alone[] = { entry(0, "fe80::5", V2),
		                                  entry(1, "10.1.0.5", V2) };
	const struct ibv_gid_entry infiniband[] = { entry(0, "fe80::b8ce:f603:77:1", V1) };

	(void)state;
	assert_int_equal(verbs_gid_choose(pairs, 6, 1, true, -1)->gid_index, 3);
	assert_int_equal(verbs_gid_choose(pairs, 4, 1, true, -1)->gid_index, 3);
	assert_int_equal(verbs_gid_choose(pairs, 2, 1, true, -1)->gid_index, 1);
	assert_int_equal(verbs_gid_choose(ipv6, 4, 1, true, -1)->gid_index, 3);
	assert_int_equal(verbs_gid_choose(v2_alone, 2, 1, true, -1)->gid_index, 1);
	assert_int_equal(verbs_gid_choose(infiniband, 1, 1, false, -1)->gid_index, 0);
}

static void verbs_gid_text_is_an_address(void **state)
{
	/* Goal: people read what ping takes. */
	struct ibv_gid_entry a = entry(0, "10.77.0.1", V2), b = entry(0, "fe80::77:ff:fe00:1", V2);
	char text[VERBS_GID_TEXT_BYTES];

	(void)state;
	verbs_gid_text(a.gid.raw, text);
	assert_string_equal(text, "10.77.0.1");
	verbs_gid_text(b.gid.raw, text);
	assert_string_equal(text, "fe80::77:ff:fe00:1");
	assert_true(verbs_gid_is_ipv4(a.gid.raw));
	assert_false(verbs_gid_is_ipv4(b.gid.raw));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verbs_gid_most_routable_entry_is_chosen),
		cmocka_unit_test(verbs_gid_wanted_index_and_port_are_kept_to),
		cmocka_unit_test(verbs_gid_layouts_of_common_fabrics_are_understood),
		cmocka_unit_test(verbs_gid_text_is_an_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vm/pair.h"

#include "base/alloc.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>

static cJSON *read_hcas(void)
{
	FILE *file = fopen(TEST_DATA_DIR "/hca_limits.json", "re");
	static char text[65536];
	size_t len;

	assert_non_null(file);
	len = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[len] = '\0';
	return cJSON_Parse(text);
}

static uint64_t limit_of(const cJSON *hca, const char *name, uint64_t most)
{
	const cJSON *item = cJSON_GetObjectItem(hca, name);
	uint64_t value = most;

	if (cJSON_IsString(item))
		value = strtoull(item->valuestring, NULL, 0);
	else if (cJSON_IsNumber(item))
		value = (uint64_t)item->valuedouble;
	return value < most ? value : most;
}

/* A path with these limits carries more than its queues hold, and nothing is left over. */
static void carries(const char *name)
{
	enum { COUNT = 1500 };
	static struct prov_wr wr[COUNT];
	struct pair p;

	pair_open(&p);
	for (uint32_t i = 0; i < COUNT; i++) {
		wr[i] = pair_wr(&p, i, (uint64_t)i * 64, 64);
		wr[i].flags = PROV_WR_IMM;
		wr[i].imm = i;
	}
	pair_post_all(&p, wr, COUNT);
	pair_drain(&p, COUNT, COUNT);
	if (memcmp(p.a.mem, p.b.mem, COUNT * 64) != 0)
		fail_msg("%s: bytes are missing", name);
	pair_close(&p);
	assert_int_equal(pair_fake()->objects(), 0);
}

static void dev_keeps_to_the_limits_of_devices_in_use(void **state)
{
	/* Goal: what devices have printed of themselves is asked of them, and no more. */
	cJSON *file = read_hcas();
	const cJSON *hca;
	uint32_t count = 0;

	(void)state;
	assert_non_null(file);
	cJSON_ArrayForEach(hca, cJSON_GetObjectItem(file, "hcas"))
	{
		struct fake_knobs *fake = pair_fake();

		fake->max_qp_wr = (uint32_t)limit_of(hca, "max_qp_wr", fake->max_qp_wr);
		fake->max_cqe = (uint32_t)limit_of(hca, "max_cqe", fake->max_cqe);
		fake->max_mr_size = limit_of(hca, "max_mr_size", fake->max_mr_size);
		fake->max_mrs = (uint32_t)limit_of(hca, "max_mr", fake->max_mrs);
		carries(cJSON_GetObjectItem(hca, "device")->valuestring);
		count++;
	}
	assert_true(count >= 5);
	cJSON_Delete(file);
}

static void dev_with_small_queues_carries_all_the_same(void **state)
{
	/* Goal: queues far below the defaults are back-pressure: shorter, not refused. */
	static const struct {
		uint32_t qp_wr, cqe, srq_wr;
	} cases[] = { { 64, 32768, 32768 }, { 1024, 1024, 32768 }, { 1024, 32768, 64 },
		      { 128, 512, 128 } };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fake_knobs *fake = pair_fake();

		fake->max_qp_wr = cases[i].qp_wr;
		fake->max_cqe = cases[i].cqe;
		fake->max_srq_wr = cases[i].srq_wr;
		carries("small");
	}
}

static void dev_region_beyond_the_longest_is_refused_with_both_figures(void **state)
{
	/* Goal: a device of 64 GiB a region (here: a page) says so, and takes a shorter one. */
	static uint8_t mem[8192];
	struct fake_knobs *fake = pair_fake();
	struct prov_error error;
	struct side s = { 0 };
	uint64_t key;

	(void)state;
	side_open(&s, "fake0");
	fake->max_mr_size = 4096;
	assert_int_not_equal(prov_verbs_ops.reg(s.dev, mem, 8192, PROV_REG_REMOTE, 0, &key, &error),
	                     WIMM_OK);
	assert_non_null(strstr(error.text, "8192 bytes"));
	assert_non_null(strstr(error.text, "fake0 port 1"));
	assert_ok(prov_verbs_ops.reg(s.dev, mem, 4096, PROV_REG_REMOTE, 0, &key, &error));
	side_close(&s);
	assert_int_equal(fake->objects(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dev_keeps_to_the_limits_of_devices_in_use),
		cmocka_unit_test(dev_with_small_queues_carries_all_the_same),
		cmocka_unit_test(dev_region_beyond_the_longest_is_refused_with_both_figures),
	};

	return cmocka_run_group_tests_name("prov/verbs/dev", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One write with an immediate, between two engines of one process. The README shows its middle. */
#include <stdio.h>
#include <stdlib.h>
#include <wimm/imm.h>
#include <wimm/transfer.h>

static void ok(wimm_status status)
{
	if (status == WIMM_OK)
		return;
	(void)fprintf(stderr, "%s\n", wimm_status_text(status));
	exit(1);
}

int main(void)
{
	static char src[4096] = "hello", dst[4096];
	const struct wimm_engine_opts opts = { .size = sizeof(opts), .nics = "127.0.0.1:0" };
	struct wimm_engine *a, *b;
	struct wimm_mr *source, *target;
	struct wimm_remote_mr *remote;
	struct wimm_mr_desc desc;
	uint64_t arrived = 0;
	const struct wimm_on_done set_flag = { .flag = &arrived };

	ok(wimm_engine_open(&opts, &a));
	ok(wimm_engine_open(&opts, &b));
	ok(wimm_reg_mr(a, src, sizeof(src), NULL, &source));
	ok(wimm_reg_mr(b, dst, sizeof(dst), NULL, &target));
	ok(wimm_mr_get_desc(target, &desc)); /* bytes: carry them by any channel */
	ok(wimm_open_remote_mr(a, &desc, &remote));
	ok(wimm_expect_imm_count(b, 7, 1, NULL, &set_flag, NULL));
	struct wimm_write w = { .size = sizeof(w), .flags = WIMM_IMM, .imm = 7,
		                .src = source, .dst = remote, .len_bytes = sizeof(src) };
	ok(wimm_submit_single_write(a, &w, NULL, NULL));
	while (wimm_flag_load(&arrived) == 0)
		;
	puts(dst);

	if (wimm_flag_load(&arrived) != 1) /* else negative: the status that it ended with */
		return 1;
	ok(wimm_engine_close(&a));
	ok(wimm_engine_close(&b));
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "duo.h"

#include "base/config.h"
#include "prov/host/foreign.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the kernel forbids is found out when the path starts, and writes land all the same. */

static const struct prov_ops *const ops = &prov_host_ops;

/* Long writes, so that each way would be taken if it were there. */
static bool write_and_see(struct duo_side *s, bool want_offer, int want_errno)
{
	const struct host_ways *ways = &((const struct host_path *)s->path)->ways;
	uint32_t posted = 0;

	if (ways->tx_offer != want_offer ||
	    (!want_offer && want_errno != 0 && ways->tx_offer_errno != want_errno)) {
		char text[PROV_TEXT_BYTES];

		(void)snprintf(text, sizeof(text), "fetching %s: %s",
		               ways->tx_offer ? "is allowed" : "is forbidden",
		               host_foreign_reason(ways->tx_offer_errno));
		return duo_fail(s, text);
	}
	while (s->done_ok < 64 && !s->down) {
		struct prov_wr wr = duo_wr(s, 1, posted * UINT64_C(65536), 65536, 1);

		if (posted < 64)
			posted += ops->post(s->path, &wr, 1);
		duo_turn(s);
	}
	return !s->down;
}

static bool fetched(struct duo_side *s)
{
	return write_and_see(s, true, 0);
}

static bool forbidden(struct duo_side *s)
{
	return write_and_see(s, false, EPERM);
}

static bool unnameable(struct duo_side *s)
{
	return write_and_see(s, false, ESRCH);
}

static bool not_there(struct duo_side *s)
{
	return write_and_see(s, false, ENOSYS);
}

static bool not_asked(struct duo_side *s)
{
	return write_and_see(s, false, EOPNOTSUPP);
}

static bool all_landed(struct duo_side *s)
{
	if (atomic_load(&s->shared->imms[1]) != 64)
		return duo_fail(s, "not every write was counted");
	for (size_t i = 0; i < 64 * 65536; i++) {
		if (s->mem[i] != 1)
			return duo_fail(s, "a byte has not come");
	}
	return s->mem[64 * 65536] == 2 || duo_fail(s, "a byte too many has come");
}

static bool drop_ptrace(struct duo_side *s)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data) != 0)
		return duo_fail(s, "capget");
	data[0].effective &= ~(1u << CAP_SYS_PTRACE);
	data[0].permitted &= ~(1u << CAP_SYS_PTRACE);
	return syscall(SYS_capset, &head, data) == 0 || duo_fail(s, "capset");
}

static bool be_undumpable(struct duo_side *s)
{
	return drop_ptrace(s) && (prctl(PR_SET_DUMPABLE, 0) == 0 || duo_fail(s, "dumpable"));
}

/* Every process_vm call fails with this errno. */
static bool filter_with(struct duo_side *s, unsigned int code)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof(filter) / sizeof(filter[0]), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0)
		return duo_fail(s, "seccomp");
	return true;
}

static bool filter_eperm(struct duo_side *s)
{
	return filter_with(s, EPERM);
}

static bool filter_enosys(struct duo_side *s)
{
	return filter_with(s, ENOSYS);
}

static bool be_user(struct duo_side *s, uid_t uid)
{
	if (config_set("host_any_uid", "1") != WIMM_OK || setgid(uid) != 0 || setuid(uid) != 0)
		return duo_fail(s, "setuid");
	return true;
}

static bool be_someone(struct duo_side *s)
{
	return be_user(s, 65533);
}

static bool be_another(struct duo_side *s)
{
	return be_user(s, 65534);
}

/* Nobody is let in, and a hello may take far longer than the test. */
static bool be_strict(struct duo_side *s)
{
	if (config_set("hello_timeout_ms", "3600000") != WIMM_OK)
		return duo_fail(s, "setting");
	return be_user(s, 65534) && (config_set("host_any_uid", "0") == WIMM_OK ||
	                             duo_fail(s, "setting"));
}

static bool ring_only(struct duo_side *s)
{
	return config_set("host_way", "ring") == WIMM_OK || duo_fail(s, "setting");
}

static void need_root(void)
{
	if (geteuid() != 0)
		test_skip("only root may change capabilities, users and namespaces");
}

static void run(duo_fn before_a, duo_fn before_b, duo_fn act_a)
{
	duo_run(&(struct duo){ .before_a = before_a, .before_b = before_b, .act_a = act_a,
	                       .end_b = all_landed });
}

static void policy_nothing_forbidden_is_fetched(void **state)
{
	/* Goal: between equal processes the receiver fetches. */
	(void)state;
	run(NULL, NULL, fetched);
}

static void policy_equal_processes_need_no_capability(void **state)
{
	/* Goal: without CAP_SYS_PTRACE on both sides it is still allowed. */
	(void)state;
	need_root();
	run(drop_ptrace, drop_ptrace, fetched);
}

static void policy_receiver_without_capability_takes_the_ring(void **state)
{
	/* Goal: a sender with more capabilities than the receiver may not be read. */
	(void)state;
	need_root();
	run(NULL, drop_ptrace, forbidden);
}

static void policy_undumpable_sender_takes_the_ring(void **state)
{
	/* Goal: PR_SET_DUMPABLE 0 is respected and noticed. */
	(void)state;
	need_root();
	run(be_undumpable, drop_ptrace, forbidden);
}

static void policy_filtered_calls_take_the_ring(void **state)
{
	/* Goal: a seccomp filter that refuses, or hides, the call is noticed. */
	(void)state;
	run(NULL, filter_eperm, forbidden);
	run(NULL, filter_enosys, not_there);
}

static void policy_setting_keeps_the_call_from_being_made(void **state)
{
	/* Goal: with host_way=ring at the receiver nothing is fetched, and the sender knows why. */
	(void)state;
	run(NULL, ring_only, not_asked);
}

static void policy_other_user_takes_the_ring_when_let_in(void **state)
{
	/* Goal: with host_any_uid processes of two users meet, and do not read each other. */
	(void)state;
	need_root();
	run(be_someone, be_another, forbidden);
}

static void policy_other_user_is_turned_away_at_once(void **state)
{
	/* Goal: a dialler of another user, that would let us in, is refused; neither side waits for
	 * the end of the hello. */
	(void)state;
	need_root();
	duo_run(&(struct duo){ .before_a = be_someone, .before_b = be_strict, .refused = true });
}

static void policy_other_pid_namespace_takes_the_ring(void **state)
{
	/* Goal: a receiver that cannot name the sender is noticed. */
	(void)state;
	need_root();
	duo_run(&(struct duo){ .act_a = unnameable, .end_b = all_landed,
	                       .b_in_pid_namespace = true });
}

static void policy_yama_takes_the_ring(void **state)
{
	/* Goal: ptrace_scope 1 lets only a parent read; the test's children are siblings. */
	FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = 0;

	(void)state;
	if (!file)
		test_skip("this kernel has no Yama");
	if (fscanf(file, "%d", &scope) != 1)
		scope = 0;
	(void)fclose(file);
	if (scope == 0)
		test_skip("Yama's ptrace_scope is 0");
	run(drop_ptrace, drop_ptrace, forbidden);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(policy_nothing_forbidden_is_fetched),
		cmocka_unit_test(policy_equal_processes_need_no_capability),
		cmocka_unit_test(policy_receiver_without_capability_takes_the_ring),
		cmocka_unit_test(policy_undumpable_sender_takes_the_ring),
		cmocka_unit_test(policy_filtered_calls_take_the_ring),
		cmocka_unit_test(policy_setting_keeps_the_call_from_being_made),
		cmocka_unit_test(policy_other_user_takes_the_ring_when_let_in),
		cmocka_unit_test(policy_other_user_is_turned_away_at_once),
		cmocka_unit_test(policy_other_pid_namespace_takes_the_ring),
		cmocka_unit_test(policy_yama_takes_the_ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

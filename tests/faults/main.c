/* SPDX-License-Identifier: Apache-2.0 */
/* faults PROVIDER[-PROFILE] NICS threads|driven GROUP...: runs groups of cases of faults against
 * one configuration, on the contract suite's fixture. CASE=pattern in the environment picks. */
#include "faults/puppet.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define CASES_MAX 64

#define GROUPS(X)                                                                                  \
	X(death) X(ending) X(start) X(region) X(source) X(hostile) X(blobs) X(fence) X(path)      \
	X(session) X(key) X(rings) X(claim) X(world)

#define X(name) extern const struct contract_group group_##name;
GROUPS(X)
#undef X

static const struct contract_group *const groups[] = {
#define X(name) &group_##name,
	GROUPS(X)
#undef X
};

static bool applies(unsigned only)
{
	bool tcp = strcmp(cfg.provider, "tcp") == 0;
	bool sim = strcmp(cfg.provider, "sim") == 0;
	bool verbs = strcmp(cfg.provider, "verbs") == 0;

	return !((only & ONLY_TCP && !tcp) || (only & ONLY_SIM && !sim) ||
	         (only & ONLY_PROCESSES && sim) || (only & (ONLY_LASTING | ONLY_CANCEL) && verbs) ||
	         (only & ONLY_VERBS && !verbs) ||
	         (only & ONLY_THREADS && cfg.driven) || (only & ONLY_DRIVEN && !cfg.driven) ||
	         (only & ONLY_ONE_NIC && cfg.nics != 1) ||
	         (only & ONLY_MANY_NICS && cfg.nics < 2) ||
	         (only & ONLY_LONG && (test_scale() < 10 || SANITIZED)));
}

static int teardown(void **state)
{
	puppets_sweep();
	return case_teardown(state);
}

static int run_group(const char *name)
{
	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
		struct CMUnitTest tests[CASES_MAX];
		size_t n = 0;

		if (strcmp(groups[g]->name, name) != 0)
			continue;
		for (size_t i = 0; i < groups[g]->count && n < CASES_MAX; i++) {
			const struct contract_case *c = &groups[g]->cases[i];

			if (applies(c->only))
				tests[n++] = (struct CMUnitTest){ c->name, c->fn, case_setup,
					                          teardown, NULL };
		}
		return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
	}
	print_error("no group \"%s\"\n", name);
	return 1;
}

static void *do_nothing(void *arg)
{
	return arg;
}

int main(int argc, char **argv)
{
	int failed = puppet_main(argc, argv);
	pthread_t first;
	char *profile;

	if (failed >= 0)
		return failed;
	if (argc < 5) {
		print_error("usage: faults PROVIDER[-PROFILE] NICS threads|driven GROUP...\n");
		return 2;
	}
	setenv("WIMM_LOG_LEVEL", "error", 0);
	profile = strchr(argv[1], '-');
	if (profile != NULL)
		*profile++ = '\0';
	cfg.provider = argv[1];
	cfg.profile = profile != NULL ? profile : "efa";
	if (strcmp(cfg.provider, "host") == 0 && profile != NULL)
		setenv("WIMM_HOST_WAY", strcmp(profile, "own") == 0 ? "auto" : profile, 1);
	/* tcp-routed: writes to peers of this machine, which all are, go past the NICs. */
	setenv("WIMM_SAME_HOST", strcmp(cfg.profile, "routed") == 0 ? "auto" : "off", 1);
	cfg.nics = (uint32_t)strtoul(argv[2], NULL, 10);
	cfg.driven = strcmp(argv[3], "driven") == 0;
	if (getenv("CASE") != NULL)
		cmocka_set_test_filter(getenv("CASE"));
	/* The thread sanitizer starts one of its own with the first: before threads are counted. */
	failed = pthread_create(&first, NULL, do_nothing, NULL);
	if (failed == 0)
		failed = pthread_join(first, NULL);
	for (int i = 4; i < argc; i++)
		failed += run_group(argv[i]);
	return failed != 0;
}

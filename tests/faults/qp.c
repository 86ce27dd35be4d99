/* SPDX-License-Identifier: Apache-2.0 */
#include "faults/qp.h"

#include "core/engine.h"

#ifdef HAVE_VERBS
#include "prov/verbs/path.h"

static void stop_qps(struct worker *w, void *arg)
{
	uint32_t *stopped = arg;

	LIST_FOR_EACH(it, &w->peers) {
		const struct peer *p = LIST_ENTRY(it, struct peer, link);

		for (uint32_t k = 0; k < p->path_count; k++) {
			const struct verbs_path *path = (struct verbs_path *)p->path[k].prov;

			if (path == NULL || path->qp == NULL)
				continue;
			verbs_qp_stop(path->obj.dev, path->qp);
			++*stopped;
		}
	}
}
#else
static void stop_qps(struct worker *w, void *arg)
{
	(void)w;
	*(uint32_t *)arg = 0;
}
#endif

void qps_to_error(struct node *n)
{
	uint32_t stopped = 0;

	assert_string_equal(cfg.provider, "verbs");
	worker_call(&n->engine->worker, stop_qps, &stopped);
	assert_true(stopped != 0);
}

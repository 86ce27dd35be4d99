/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/about.h"

#include "lib/channel.h"
#include "lib/util.h"

#include <wimm/engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cJSON *about_load(void)
{
	size_t room = 1u << 16;
	cJSON *info;

	for (;;) {
		size_t len;
		char *text = must_alloc(1, room);
		wimm_status st = wimm_info_json(text, room, &len);

		if (st == WIMM_E_LIMIT) {
			room = len + 4096; /* it may have grown until the next look */
			free(text);
			continue;
		}
		must(st, "describing this machine");
		info = cJSON_Parse(text);
		free(text);
		break;
	}
	if (info == NULL)
		die("the library's description of this machine is no JSON");
	return info;
}

void about_setting(const char *name, char *out, unsigned out_bytes)
{
	cJSON *info = about_load();
	const cJSON *settings = cJSON_GetObjectItemCaseSensitive(info, "settings");
	const cJSON *row;

	out[0] = '\0';
	cJSON_ArrayForEach(row, settings)
	{
		if (strcmp(member_text(row, "name"), name) == 0)
			(void)snprintf(out, out_bytes, "%s", member_text(row, "value"));
	}
	cJSON_Delete(info);
}

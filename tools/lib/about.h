/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_ABOUT_H
#define TOOLS_LIB_ABOUT_H

#include <cjson/cJSON.h>

/* What wimm_info_json() says. The caller deletes it. */
cJSON *about_load(void);
/* The value of a text setting into out. */
void about_setting(const char *name, char *out, unsigned out_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "wimm/status.h"

const char *wimm_status_name(wimm_status status)
{
	switch (status) {
#define X(name, value, scope, text)                                                                \
	case WIMM_##name:                                                                          \
		return #name;
		WIMM_STATUS_MAP(X)
#undef X
	}
	return "UNKNOWN";
}

const char *wimm_status_text(wimm_status status)
{
	switch (status) {
#define X(name, value, scope, text)                                                                \
	case WIMM_##name:                                                                          \
		return text;
		WIMM_STATUS_MAP(X)
#undef X
	}
	return "unknown status";
}

wimm_scope wimm_status_scope(wimm_status status)
{
	switch (status) {
#define X(name, value, scope, text)                                                                \
	case WIMM_##name:                                                                          \
		return WIMM_SCOPE_##scope;
		WIMM_STATUS_MAP(X)
#undef X
	}
	return WIMM_SCOPE_ENGINE;
}

uint32_t wimm_version(void)
{
	return WIMM_VERSION_NUMBER;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/models.h"

#include <string.h>

static const struct model models[] = {
	{ "llama-3.1-8b", 32, 8, 128, 2, 16 },    { "llama-3.1-70b", 80, 8, 128, 2, 16 },
	{ "qwen3-8b", 36, 8, 128, 2, 16 },        { "qwen3-235b", 94, 4, 128, 2, 16 },
	{ "qwen3-235b-a22b", 94, 4, 128, 2, 16 }, { "deepseek-v3", 61, 1, 576, 1, 64 },
	{ "gpt-oss-120b", 36, 8, 64, 2, 16 },     { "smollm2-135m", 30, 3, 64, 2, 16 },
};
#define MODEL_COUNT (sizeof(models) / sizeof(models[0]))

const struct model *model_find(const char *name)
{
	for (size_t i = 0; i < MODEL_COUNT; i++)
		if (strcmp(models[i].name, name) == 0)
			return &models[i];
	return NULL;
}

const struct model *model_default(void)
{
	return &models[0];
}

const struct model *model_at(size_t i)
{
	return i < MODEL_COUNT ? &models[i] : NULL;
}

#include "host/api/api_priv.h"

void api_info(struct api *a, struct bus_call *c, json_object *request)
{
	json_object *reply = reply_object(), *contract = reply_object();

	(void)request;
	json_add_u64(contract, "major", API_CONTRACT_MAJOR);
	json_add_u64(contract, "minor", API_CONTRACT_MINOR);
	json_add_str(reply, "adapter", API_NAME);
	json_add_str(reply, "adapter_version", a->version);
	reply_add(reply, "contract", contract);
	reply_ok(c, reply);
}

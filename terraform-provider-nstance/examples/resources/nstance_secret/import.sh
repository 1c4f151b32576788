# cluster/name
terraform import nstance_secret.api_token example/api-token

"""The reference of the HTTP APIs: the OpenAPI document of `/v1`, and a page that shows it and the admin API's."""

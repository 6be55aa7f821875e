[("calm", include_str!("../scenarios/calm.toml"))]

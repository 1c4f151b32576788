# The rules that come with tflint. Those of a cloud would be plugins to download; the providers check more when planning.
plugin "terraform" {
  enabled = true
  preset  = "all"
}

# Variables of a module may be in two files, where one would be too long.
rule "terraform_standard_module_structure" {
  enabled = false
}

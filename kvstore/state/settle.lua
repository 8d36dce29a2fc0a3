-- Settles some of the staged records of a transaction: if it is committed, they move to the index; if not, they are deleted.
-- stored.lua is prepended. ARGV after the prefix: transaction, cursor, number of records if it is not known to be less.

local transaction = ARGV[3]
local name, count = staged(transaction), tonumber(ARGV[5])
local committed = redis.call('HGET', index, '') == transaction
if committed then
    count = math.min(count, tonumber(redis.call('HGET', meta, 'settled_at_once') or count))
else
    redis.call('HDEL', open, transaction)
    if redis.call('GET', lock) == transaction then redis.call('UNLINK', lock) end
end
local reply = redis.call('HSCAN', name, ARGV[4], 'COUNT', count)
local keys, records = {}, {}
for n = 1, #reply[2], 2 do
    keys[#keys + 1], records[#records + 1] = reply[2][n], reply[2][n + 1]
end
if committed then
    settle(transaction, keys, records)
else
    call_with('HDEL', name, keys)
    for n, record in ipairs(records) do
        -- A list that it would have extended is not its own.
        local list = list_of(record)
        if keys[n] ~= '' and not (list and string.sub(list, 1, #transaction) ~= transaction) then free(record) end
    end
end
local left = redis.call('EXISTS', name)
if committed and left == 0 then redis.call('HDEL', index, '') end
return {reply[1], left}
